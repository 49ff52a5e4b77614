(() => {
"use strict";
{% include 'scan/data.js' %}
{% include 'scan/colours.js' %}
{% include 'scan/charts.js' %}
{% include 'scan/map.js' %}
{% include 'scan/numbers.js' %}
{% include 'scan/panel.js' %}
{% include 'scan/layers.js' %}
{% include 'scan/table.js' %}
{% include 'scan/main.js' %}
})();
