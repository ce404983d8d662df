/* Runs before the first paint: a theme that was chosen beats the system's. */
"use strict";
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
