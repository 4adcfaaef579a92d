// Runs before the page is drawn, so that it does not flash in other colours.
(() => {
  const names = ["auto", "light", "dark"];
  const words = { auto: "as the system", light: "light", dark: "dark" };
  const marks = { auto: "◐", light: "☀", dark: "☾" };
  const root = document.documentElement;

  function remembered() {
    try {
      const name = localStorage.getItem("fedil-theme");
      return names.includes(name) ? name : "auto";
    } catch {
      return "auto"; // storage may be switched off
    }
  }

  function wear(name) {
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    if (button) {
      button.setAttribute("aria-label", `Colours: ${words[name]}`);
      button.title = `Colours: ${words[name]}`;
      document.getElementById("theme-mark").textContent = marks[name];
    }
  }

  wear(remembered());
  document.addEventListener("DOMContentLoaded", () => {
    wear(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const next = names[(names.indexOf(root.dataset.theme) + 1) % names.length];
      try {
        localStorage.setItem("fedil-theme", next);
      } catch {
        // then it lasts until the page is closed
      }
      wear(next);
    });
  });
})();
