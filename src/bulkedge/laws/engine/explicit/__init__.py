"""Laws whose inverse map is explicit."""
