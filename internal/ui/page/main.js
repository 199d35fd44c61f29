// Chooses a view by the address: #/now, #/key?limit=login&key=user:7, #/limits?name=login.
import {now} from "./now.js";
import {key} from "./key.js";
import {limits} from "./limits.js";
import {audit} from "./audit.js";
import {h} from "./dom.js";

const views = {now, key, limits, audit};
let leave = new AbortController();

async function route() {
  leave.abort();
  leave = new AbortController();
  const {signal} = leave;
  const [path, query] = location.hash.replace(/^#\//, "").split("?");
  const name = Object.hasOwn(views, path) ? path : "now";
  for (const a of document.querySelectorAll("nav a")) {
    if (a.hash === "#/" + name) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  document.title = "dipwell: " + name;
  // A view that was left goes on with an element that is no longer shown.
  const old = document.getElementById("view"), view = h("main", {id: "view", tabindex: -1});
  const moved = document.activeElement !== document.body; // somebody is at work here
  old.replaceWith(view);
  if (moved) view.focus({preventScroll: true});
  try {
    await views[name](view, new URLSearchParams(query ?? ""), signal);
  } catch (err) {
    if (!signal.aborted) view.append(h("p", {class: "bad", role: "alert"}, err.message));
  }
}

addEventListener("hashchange", () => { if (location.hash.startsWith("#/") || location.hash === "") route(); });
route();
