// The view Now: what the service decides at this moment.
import {call, events} from "./api.js";
import {card, count, h, keyLink, keyName, rate, span, table} from "./dom.js";
import {lines} from "./chart.js";

const seconds = 120;

export async function now(view, _query, signal) {
  const cards = h("div", {class: "cards"}), chart = h("figure"), limits = h("div"), keys = h("div", {class: "pair"});
  const note = h("p", {class: "quiet"}, "Waiting for the first second …");
  view.append(h("h1", {}, "Now"), note, cards, chart, h("h2", {}, "Limits"), limits, keys, ...hours(signal));
  const allowed = [], refused = [];
  while (!signal.aborted) {
    try {
      for await (const e of events("/v1/live", signal)) {
        note.textContent = `Store: ${e.store}. The last ${seconds} s, from when this page was opened.`;
        push(allowed, e.all.allowed * 1e6 / e.interval_us);
        push(refused, e.all.refused * 1e6 / e.interval_us);
        cards.replaceChildren(...cardsOf(e));
        chart.replaceChildren(drawing(allowed, refused));
        limits.replaceChildren(limitsOf(e));
        const within = `In the last ${span(e.window_us)}, by this service alone (${e.process})`;
        keys.replaceChildren(keysOf("Busiest keys", "decisions", e.busiest, within), keysOf("Most refused keys", "refusals", e.refused, within));
      }
    } catch (err) {
      if (signal.aborted) return;
      note.textContent = "No connection: " + err.message + ". It is tried again.";
    }
    await new Promise((again) => setTimeout(again, 2000));
  }
}

function push(list, n) {
  list.push(n);
  if (list.length > seconds) list.shift();
}

function drawing(allowed, refused) {
  const most = Math.max(1, ...allowed, ...refused);
  return h("div", {},
    lines([{kind: "allowed", values: allowed}, {kind: "refused", values: refused}], seconds, "Decisions a second"),
    h("figcaption", {class: "scale"},
      h("span", {}, h("i", {class: "swatch"}), "allowed a second"), h("span", {}, h("i", {class: "swatch refused"}), "refused a second"),
      h("span", {}, `top of the chart: ${rate(most, 1e6)}`)));
}

function cardsOf(e) {
  const g = e.gauges ?? {}, breaker = g.dipwell_store_breaker_open, drift = g.dipwell_config_drift ?? 0;
  const list = [
    card("allowed a second", rate(e.all.allowed + e.all.shadow, e.interval_us)),
    card("refused a second", rate(e.all.refused, e.interval_us), e.all.refused > 0),
    card("half take at most", e.p50_ns === null ? "–" : span(e.p50_ns / 1000)),
    card("99 % take at most", e.p99_ns === null ? "–" : span(e.p99_ns / 1000)),
    card("store errors a second", rate(e.store_errors, e.interval_us), e.store_errors > 0),
    card("decided without the store", rate(e.all.fallback, e.interval_us), e.all.fallback > 0),
    card("turned away a second", rate(e.shed, e.interval_us), e.shed > 0),
    card("calls in flight", count(g.dipwell_in_flight ?? 0)),
  ];
  if (g.dipwell_keys !== undefined) list.push(card("keys", count(g.dipwell_keys)));
  if (breaker !== undefined) list.push(card("breaker", breaker ? "open" : "closed", breaker > 0));
  if (drift > 0) list.push(card("limits that differ from the file", count(drift), true));
  return list;
}

function limitsOf(e) {
  const rows = e.limits.map((l) => [
    h("a", {href: "#/limits?name=" + encodeURIComponent(l.limit)}, l.limit), rate(l.allowed, e.interval_us), rate(l.refused, e.interval_us),
    share(l.refused, l.allowed + l.refused + l.shadow), rate(l.shadow, e.interval_us), rate(l.fallback, e.interval_us)]);
  const more = e.other_limits > 0 && h("p", {class: "quiet"}, `and ${count(e.other_limits)} more limits with fewer decisions`);
  return h("div", {}, table([["limit", "key"], ["allowed/s", "n"], ["refused/s", "n"], ["refused", "n"], ["shadow/s", "n"], ["fallback/s", "n"]], rows, "No decisions in the last second."), more || "");
}

const share = (part, all) => (all === 0 ? "–" : (100 * part / all).toFixed(1) + " %");

function keysOf(title, counted, top, within) {
  const rows = top.keys.map((k) => [h("a", {href: keyLink(k.limit, k.key === "" ? null : k.key)}, keyName(k.key)), k.limit, count(k.count) + (k.error > 0 ? " (−" + count(k.error) + ")" : "")]);
  const error = top.keys.some((k) => k.error > 0) ? " A number in parentheses is how much too high a count may be." : "";
  return h("section", {}, h("h2", {}, title), table([["key", "key"], ["limit", ""], [counted, "n"]], rows, "None."),
    h("p", {class: "quiet"}, `${within}; a key that is not listed has at most ${count(top.unlisted_at_most)}.${error}`));
}

const hour = 36e5, week = 168; // ms, hours

// hours shows the lists of an hour of the last week.
function hours(signal) {
  const start = Math.floor(Date.now() / hour), lists = h("div", {class: "pair"}), note = h("p", {class: "quiet", role: "status"});
  const pick = h("select", {id: "hour", onchange: () => show()}, Array.from({length: week + 1}, (_, i) =>
    h("option", {value: new Date((start - i) * hour).toISOString(), selected: i === 1}, new Date((start - i) * hour).toLocaleString([], {weekday: "short", day: "numeric", month: "short", hour: "numeric", minute: "2-digit"}))));
  const show = async () => {
    try {
      const t = await call("GET", "/v1/top?" + new URLSearchParams({hour: pick.value}), undefined, signal), none = t.processes.length === 0;
      note.textContent = none ? "Nothing is kept of this hour. An hour is there once it has ended." : "Counted by " + t.processes.join(", ") + ".";
      lists.replaceChildren(...(none ? [] : [keysOf("Busiest", "decisions", t.busiest, "In the hour"), keysOf("Most refused", "refusals", t.refused, "In the hour")]));
    } catch (err) {
      if (!signal.aborted) {
        note.textContent = err.message;
        lists.replaceChildren();
      }
    }
  };
  show();
  return [h("h2", {}, "An hour of the last week, by all services"), h("p", {}, h("label", {}, "Begins at ", pick)), note, lists];
}
