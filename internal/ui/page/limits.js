// The view Limits: definitions, their plans, and the overrides of their keys.
import {call, everyLimit, limitPath} from "./api.js";
import {count, h, keyLink, keyName, say, table} from "./dom.js";

export async function limits(view, query, signal) {
  if (query.has("draft")) {
    draft(view, query);
    return;
  }
  const name = query.get("name"), all = await everyLimit(signal);
  if (name === null) {
    view.append(h("h1", {}, "Limits"), h("p", {}, h("a", {href: "#/limits?draft"}, "Draft a limit")), table([["limit", "key"], ["algorithm", ""], ["rate", "n"], ["capacity", "n"], ["owner", ""], ["version", "n"], ["also", ""]],
      all.map((l) => [h("a", {href: "#/limits?name=" + encodeURIComponent(l.name)}, l.name), l.algorithm ?? "token_bucket", l.rate ? count(l.rate) + " / " + l.per : "–",
        count(l.capacity), l.owner, String(l.version), marks(l)]), "No limit is defined."));
    return;
  }
  const limit = all.find((l) => l.name === name);
  view.append(h("p", {}, h("a", {href: "#/limits"}, "All limits")), h("h1", {}, name));
  if (!limit) {
    view.append(h("p", {class: "bad"}, "There is no limit of this name."));
    return;
  }
  view.append(settings(limit), h("p", {}, h("a", {href: "#/key?" + new URLSearchParams({limit: name})}, limit.shared ? "Look at its bucket" : "Look at a key")),
    modes(limit), plans(limit), await overrides(limit, signal));
  while (!signal.aborted && limit.mode === "shadow") {
    await wouldRefuse(limit, signal);
    await new Promise((next) => setTimeout(next, 2000));
  }
}

const drafted = {name: {maxlength: 128, required: true}, rate: {type: "number", min: 1, required: true}, per: {size: 6, required: true, placeholder: "1m"},
  burst: {type: "number", min: 0, placeholder: "the rate"}, note: {maxlength: 1024, placeholder: "why"}};

// draft lets somebody write a limit. It is in the address and nowhere else, until it is
// defined in shadow mode.
function draft(view, query) {
  const kinds = ["token_bucket", "fixed_window", "interval", "leaky_bucket"];
  const kind = h("select", {id: "draft-algorithm"}, kinds.map((k) => h("option", {value: k, selected: k === query.get("algorithm")}, k)));
  const fields = Object.fromEntries(Object.entries(drafted).map(([n, props]) => [n, h("input", {id: "draft-" + n, value: query.get(n) ?? "", autocomplete: "off", ...props})]));
  const settings = () => Object.fromEntries([["algorithm", kind], ...Object.entries(fields)].filter(([, f]) => f.value !== "").map(([n, f]) => [n, f.value]));
  const form = h("form", {id: "draft", oninput: () => history.replaceState(null, "", "#/limits?draft&" + new URLSearchParams(settings())), onsubmit: async (e) => {
    e.preventDefault();
    const {name, ...body} = settings();
    try {
      await call("GET", limitPath(name)).then(() => { throw new Error("There is a limit of this name."); }, (err) => { if (err.status !== 404) throw err; });
      await call("PUT", limitPath(name), {...body, mode: "shadow"});
      say("Defined in shadow mode: it refuses no call.");
      location.hash = "#/limits?" + new URLSearchParams({name});
    } catch (err) {
      say(err.message);
    }
  }}, h("label", {}, "algorithm", kind), Object.entries(fields).map(([n, f]) => h("label", {class: n === "note" && "wide"}, n, f)), h("button", {}, "Define it in shadow mode"));
  view.append(h("p", {}, h("a", {href: "#/limits"}, "All limits")), h("h1", {}, "Draft of a limit"),
    h("p", {class: "quiet"}, "The draft is stored only in the address of this page: send the address to somebody who should review it. In shadow mode the limit allows every call and counts those that it would have refused. When the numbers are right, enforce it."), form);
}

// modes shows the mode of a limit, and for limits of the API lets somebody change it.
function modes(l) {
  const shadow = l.mode === "shadow", path = limitPath(l.name);
  if (l.owner !== "api") return h("section", {}, h("h2", {}, "Mode"), h("p", {class: "quiet"}, `${shadow ? "Shadow mode: it allows every call." : "Enforced: it refuses calls above the limit."} Its owner is ${l.owner}: change the mode there.`), shadow && h("div", {id: "would"}));
  const note = h("input", {id: "mode-note", maxlength: 1024, placeholder: "why"}), sure = h("input", {id: "mode-sure", type: "checkbox", required: true});
  const set = async (e) => {
    e.preventDefault();
    try {
      const settings = await call("GET", path); // the present settings, because somebody else may have changed them
      for (const readOnly of ["owner", "version", "capacity", "warning", "present_rate", "rate_reason", "rate_changed_us"]) delete settings[readOnly];
      await call("PUT", path, {...settings, mode: shadow ? "enforce" : "shadow", note: note.value});
      say(shadow ? "The limit is now enforced." : "The limit is now in shadow mode.");
      dispatchEvent(new HashChangeEvent("hashchange"));
    } catch (err) {
      say(err.message);
    }
  };
  return h("section", {}, h("h2", {}, "Mode"), h("p", {}, shadow ? "Shadow mode: it allows every call." : "Enforced: it refuses calls above the limit."), shadow && h("div", {id: "would"}),
    h("form", {id: "mode", onsubmit: set}, h("label", {class: "line"}, "Yes, change the mode", sure), h("label", {class: "wide"}, "note", note), h("button", {class: "danger"}, shadow ? "Enforce" : "Put in shadow mode")));
}

// wouldRefuse shows what a limit in shadow mode would have refused.
async function wouldRefuse(l, signal) {
  const place = document.getElementById("would");
  const top = await call("GET", "/v1/top?" + new URLSearchParams({limit: l.name, n: 10}), undefined, signal).catch(() => null);
  if (signal.aborted || top === null) return;
  const c = top.limits[0] ?? {allowed: 0, shadow: 0}, all = c.allowed + c.shadow;
  place.replaceChildren(h("p", {}, `It would have refused ${count(c.shadow)} of ${count(all)} calls${all ? ` (${(100 * c.shadow / all).toFixed(1)} %)` : ""} since this service started. These took nothing.`),
    table([["key", "key"], ["would have been refused in the last minute", "n"]], top.refused.keys.map((k) => [h("a", {href: keyLink(l.name, k.key)}, keyName(k.key)), count(k.count) + (k.error > 0 ? " (−" + count(k.error) + ")" : "")]), "No key in the last minute."));
}

function marks(l) {
  return [l.mode, l.adaptive && "adaptive", l.parent && "below " + l.parent, l.lease && "leased", l.shards && l.shards + " shards", l.warning && "warning"].filter(Boolean).join(", ");
}

function settings(l) {
  const rows = Object.entries(l).filter(([n]) => n !== "plans" && n !== "name").flatMap(([n, v]) => [h("dt", {}, n), h("dd", {class: n === "warning" && "bad"}, text(n, v))]);
  return h("dl", {}, rows);
}

const text = (name, v) => (name === "rate_changed_us" ? new Date(v / 1000).toLocaleString()
  : typeof v === "object" ? Object.entries(v).map(([n, x]) => `${n} ${x}`).join(", ") : String(v));

function plans(l) {
  const list = Object.entries(l.plans ?? {});
  return h("section", {}, h("h2", {}, "Plans"), table([["plan", "key"], ["what it changes", ""]],
    list.map(([n, p]) => [n, Object.entries(p).map(([k, v]) => `${k} ${v}`).join(", ") || "nothing"]), "It has no plans."));
}

async function overrides(l, signal) {
  const list = h("div"), section = h("section", {}, h("h2", {}, "Overrides"), list), path = limitPath(l.name, "/overrides");
  const end = async (key) => {
    try {
      await call("DELETE", path + (key === null ? "" : "?key=" + encodeURIComponent(key)));
      say("Ended.");
    } catch (err) {
      say(err.message);
    }
    await show();
  };
  const show = async (after) => {
    const q = new URLSearchParams({n: 50});
    if (after !== undefined) q.set("after", after);
    try {
      const page = await call("GET", path + "?" + q, undefined, signal);
      list.replaceChildren(table([["key", "key"], ["what", ""], ["until", ""], ["note", ""], ["end", ""]],
        page.overrides.map((o) => [h("a", {href: keyLink(l.name, o.key)}, keyName(o.key)), o.plan ?? numbers(o), o.until === null ? "no end" : new Date(o.until).toLocaleString(), o.note ?? "",
          h("button", {onclick: () => end(o.key)}, "End")]), "No key has one."),
      page.next === null ? "" : h("button", {onclick: () => show(page.next)}, "Next page"));
    } catch (err) {
      if (signal.aborted) return;
      list.replaceChildren(h("p", {class: "quiet"}, err.message));
    }
  };
  await show();
  return section;
}

const numbers = (o) => [o.rate && `rate ${count(o.rate)}`, o.per && `per ${o.per}`, o.burst !== undefined && `burst ${count(o.burst)}`].filter(Boolean).join(", ");
