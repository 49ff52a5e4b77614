// A button on every block of code that copies what one would type: no prompts, no output.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight:not(.output *)")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const lines = block.querySelector("pre").textContent.split("\n");
      const typed = lines.some((line) => line.startsWith(">>> "))
        ? lines.filter((line) => /^(>>>|\.\.\.)/.test(line)).map((line) => line.slice(4))
        : lines;
      await navigator.clipboard.writeText(typed.join("\n").trimEnd() + "\n");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
});
