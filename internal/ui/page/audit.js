// The view Audit: what people have changed, and why.
import {call, download} from "./api.js";
import {h, keyLink, keyName, say, table} from "./dom.js";

export async function audit(view, query, signal) {
  const limit = query.get("limit") ?? "", field = h("input", {id: "audit-limit", value: limit, autocomplete: "off", placeholder: "empty: all"});
  const save = () => download("/v1/audit?format=ndjson" + (limit && "&limit=" + encodeURIComponent(limit)), "audit.ndjson").catch((err) => say(err.message));
  view.append(h("h1", {}, "Audit"),
    h("p", {class: "quiet"}, "What people have changed by this page, the API, the command line and SQL: the last 10,000 changes, for at most 400 days. Changes of a configuration file and of programs that use the library are not among them."),
    h("form", {id: "filter", onsubmit: (e) => {
      e.preventDefault();
      location.hash = "#/audit" + (field.value && "?" + new URLSearchParams({limit: field.value}));
    }}, h("label", {}, "Limit", field), h("button", {}, "Show"), h("button", {id: "save", type: "button", onclick: save}, "Save")),
    await entries(limit === "" ? {} : {limit}, "Nothing was changed.", signal));
}

// entries is a list of entries of the audit, in pages.
export async function entries(filter, none, signal) {
  const list = h("div");
  const show = async (before) => {
    const q = new URLSearchParams({n: 50, ...filter});
    if (before) q.set("before", before);
    try {
      const page = await call("GET", "/v1/audit?" + q, undefined, signal);
      list.replaceChildren(table([["when", ""], ["who", ""], ["what", ""], ["limit", ""], ["key", "key"], ["set to", ""], ["note", ""]], page.entries.map((e) => [
        new Date(e.at).toLocaleString(), e.role && e.role !== e.who ? `${e.who} (${e.role})` : e.who, e.action, h("a", {href: "#/limits?name=" + encodeURIComponent(e.limit)}, e.limit),
        e.key === undefined ? "" : h("a", {href: keyLink(e.limit, e.key)}, keyName(e.key)), e.what ?? "", e.note ?? ""]), none),
      page.next === null ? "" : h("button", {onclick: () => show(page.next)}, "Older"));
    } catch (err) {
      if (!signal.aborted) list.replaceChildren(h("p", {class: "quiet"}, err.message));
    }
  };
  await show();
  return list;
}
