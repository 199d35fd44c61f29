// The frame of the two pages that compute. Where there is a service, its views are added to the
// menu, and the search, which leads to the page of the service.
import {h, s} from "./dom.js";

// openPage names the page.
export function openPage(name) {
  document.title = "dipwell: " + name.toLowerCase();
  [...document.querySelectorAll("nav a")].find((a) => a.textContent === name).setAttribute("aria-current", "page");
}

if (location.pathname.includes("/ui/")) {
  const search = h("input", {id: "search", type: "search", "aria-label": "Find a customer or key", placeholder: "Find a customer or key", autocomplete: "off", maxlength: 512});
  document.querySelector(".frame-top").append(h("form", {class: "search", role: "search", onsubmit: (e) => {
    e.preventDefault();
    if (search.value.trim() !== "") location.href = "./#/customer?" + new URLSearchParams({key: search.value.trim()});
  }}, s("svg", {class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true"}, s("circle", {cx: 7, cy: 7, r: 4.5}), s("path", {d: "m10.5 10.5 3.5 3.5"})), search, h("kbd", {}, "/")));
  addEventListener("keydown", (e) => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) return;
    e.preventDefault();
    search.focus();
  });
  const nav = document.querySelector("nav");
  nav.prepend(...["Overview", "Limits", "Changes"].map((name) => h("a", {href: "./#/" + name.toLowerCase()}, name)));
}
