// The view Limits: definitions, their plans, and the overrides of their keys.
import {call, everyLimit, limitPath} from "./api.js";
import {count, h, keyLink, keyName, say, table} from "./dom.js";

export async function limits(view, query, signal) {
  const name = query.get("name"), all = await everyLimit(signal);
  if (name === null) {
    view.append(h("h1", {}, "Limits"), table([["limit", "key"], ["algorithm", ""], ["rate", "n"], ["capacity", "n"], ["owner", ""], ["version", "n"], ["", ""]],
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
  view.append(settings(limit), h("p", {}, h("a", {href: "#/key?" + new URLSearchParams({limit: name})}, limit.parts > 0 || limit.parent ? "Look at a key" : "Look at its shared bucket, or at a key")),
    plans(limit), await overrides(limit, signal));
}

function marks(l) {
  return [l.mode, l.adaptive && "adaptive", l.parent && "below " + l.parent, l.lease && "leased", l.shards && l.shards + " shards", l.warning && "warning"].filter(Boolean).join(", ");
}

function settings(l) {
  const rows = Object.entries(l).filter(([n]) => n !== "plans" && n !== "name").flatMap(([n, v]) => [h("dt", {}, n), h("dd", {class: n === "warning" && "bad"}, text(n, v))]);
  return h("dl", {}, rows);
}

const text = (name, v) => (name === "rate_changed_us" ? (v === 0 ? "never" : new Date(v / 1000).toLocaleString())
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
      list.replaceChildren(table([["key", "key"], ["what", ""], ["until", ""], ["note", ""], ["", ""]],
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
