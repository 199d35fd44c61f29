// The view Key: one bucket, why it refuses, and what can be done about it.
import {call, everyLimit, limitPath} from "./api.js";
import {card, count, h, keyLink, keyName, say, span, table, time} from "./dom.js";
import {steps} from "./chart.js";
import {entries} from "./audit.js";

const again = 5000; // ms between two looks

export async function key(view, query, signal) {
  const name = query.get("limit"), limits = await everyLimit(signal);
  const limit = limits.find((l) => l.name === name), k = limit?.shared ? null : query.get("key");
  view.append(h("h1", {}, name ? "Key" : "Look at a key"), finder(limits, name, k));
  if (!name) return;
  if (!limit) {
    view.append(h("p", {class: "bad"}, "There is no limit of this name."));
    return;
  }
  const state = h("div"), actions = h("div"), changes = h("div");
  if (k === null && !limit.shared) {
    const path = limit.parent || limit.parts !== undefined || limits.some((l) => l.parent === name);
    view.append(h("p", {}, "Each key of this limit has a bucket of its own: say which." + (path ? " Keys are paths, such as acme/user-7." : "")), lister(limit, signal));
    return;
  }
  view.append(h("h1", {}, keyName(k), " of ", h("a", {href: "#/limits?name=" + encodeURIComponent(name)}, name)), state, actions, h("h2", {}, "Changes of this key"), changes, limit.shared ? "" : lister(limit, signal));
  const refresh = async () => {
    const bucket = await call("GET", limitPath(name, "/keys?key=" + encodeURIComponent(k ?? "")), undefined, signal);
    state.replaceChildren(...pictures(limit, bucket));
    return bucket;
  };
  const audited = async () => changes.replaceChildren(await entries({limit: name, key: k ?? ""}, "None in the audit.", signal));
  actions.append(...actionsOf(limit, k, await refresh(), async (what, done) => {
    try {
      await what();
      say(done);
      await Promise.all([refresh(), done && audited()]);
    } catch (err) {
      say(err.message);
    }
  }));
  await audited();
  while (!signal.aborted) {
    await new Promise((next) => setTimeout(next, again));
    if (!signal.aborted && !document.hidden) await refresh().catch((err) => { if (!signal.aborted) say(err.message); });
  }
}

function finder(limits, name, k) {
  const limit = h("select", {id: "limit", required: true, onchange: () => choose()}, limits.map((l) => h("option", {value: l.name, selected: l.name === name}, l.name)));
  const field = h("input", {id: "key", value: k ?? "", autocomplete: "off", maxlength: 512});
  const shared = () => limits.find((l) => l.name === limit.value)?.shared === true;
  const choose = () => {
    field.disabled = shared();
    field.placeholder = field.disabled ? "none: the shared bucket" : "";
  };
  choose();
  return h("form", {id: "find", onsubmit: (e) => {
    e.preventDefault();
    location.hash = keyLink(limit.value, shared() || field.value === "" ? null : field.value);
  }}, h("label", {}, "Limit", limit), h("label", {class: "wide"}, "Key", field), h("button", {}, "Look"));
}

function pictures(limit, b) {
  const row = b.row ?? b; // a plan that callers name may have it
  const out = [h("div", {class: "cards"},
    b.mode === "blocked" ? card("blocked", b.blocked_until_us ? `until ${time(b.blocked_until_us)}` : "until it is ended", true) : null,
    card("tokens free", count(row.remaining), row.remaining === 0),
    card("capacity", count(row.capacity)),
    card("full in", span(row.reset_after_us)),
    card("decided by", b.override ? "override" : row.plan ?? "the limit"),
    b.row ? card("a call without a plan", `${count(b.remaining)} of ${count(b.capacity)} free`) : null,
    card("answered by", b.source))];
  if (b.refill?.length) {
    const end = b.refill.at(-1)[0];
    out.push(h("figure", {}, steps([[0, row.remaining], ...b.refill], end, row.capacity, "Tokens free from now until the bucket is full"),
      h("figcaption", {class: "scale"}, h("span", {}, `now: ${count(row.remaining)} free`), h("span", {}, `if nobody comes: one more in ${span(b.refill[0][0])}`), h("span", {}, `full in ${span(end)}`))));
  }
  if (b.override) {
    out.push(h("h2", {}, "Override"), h("dl", {}, [["plan", b.override.plan], ["rate", b.override.rate], ["per", b.override.per], ["burst", b.override.burst],
      ["until", b.override.until === null ? "no end" : new Date(b.override.until).toLocaleString()], ["note", b.override.note]]
      .filter(([, v]) => v !== undefined).flatMap(([n, v]) => [h("dt", {}, n), h("dd", {}, String(v))])));
  }
  if (b.holds) {
    out.push(h("h2", {}, "Live holds"), table([["hold", "key"], ["tokens", "n"], ["expires", ""]], b.holds.map((x) => [x.hold, count(x.tokens), time(x.expires_us)]), "None."));
  }
  if (b.refusals) {
    out.push(h("h2", {}, "Last refusals"), table([["when", ""], ["cost", "n"], ["would have passed in", "n"], ["answered by", ""], ["more in that second", "n"]],
      b.refusals.last.map((x) => [time(x.at_us), count(x.cost), passed(x), x.shadow ? "shadow mode, which let it pass" : x.source, count(x.more)]),
      "None that this service remembers."),
    h("p", {class: "quiet"}, `A sample, by this service alone (${b.refusals.process}): at most one a second, the last 16, in memory.`));
  }
  if (b.limits) {
    out.push(h("h2", {}, "With its parents"), table([["limit", ""], ["key", "key"], ["free", "n"], ["capacity", "n"]],
      b.limits.map((x) => [x.limit, h("a", {href: keyLink(x.limit, x.key)}, keyName(x.key)), count(x.remaining), count(x.capacity)]), "None."));
  }
  return out;
}

function input(label, props, kind) {
  const field = h("input", props);
  return {label: h("label", {class: kind}, label, field), field};
}

// act is a form that calls run with its fields' values when it is sent.
function act(id, title, fields, button, danger, run) {
  return h("fieldset", {}, h("legend", {}, title), h("form", {id, onsubmit: (e) => { e.preventDefault(); run(); }},
    fields.map((f) => f.label), h("button", {class: danger && "danger"}, button)));
}

// passed says when a refused call would have passed.
function passed(x) {
  if (x.source.startsWith("fallback")) return "unknown: the store did not answer";
  return x.retry_after_us === null ? "never" : span(x.retry_after_us);
}

function actionsOf(limit, k, bucket, run) {
  const target = k === null ? {limit: limit.name} : {limit: limit.name, key: k};
  const forms = [];
  const cost = input("cost", {id: "next-cost", type: "number", min: 0, value: 1, required: true});
  const answer = h("span", {id: "next-answer", role: "status"});
  const next = {label: answer};
  forms.push(act("next", "When does the next call pass?", [cost, next], "Ask", false, () => run(async () => {
    const d = await call("POST", "/v1/check", {...target, cost: Number(cost.field.value)});
    answer.textContent = d.allowed ? "It passes now." : d.never ? "Never: no wait helps." : `In ${span(d.retry_after_us)}${d.retry_is_bound ? ", or sooner if a hold ends" : ""}.`;
  }, "")));
  forms.push(...overrideForms(limit, k, run));
  const back = input("tokens", {id: "refund-cost", type: "number", min: 1, value: 1, required: true});
  if (limit.algorithm !== "concurrency") {
    const note = noteField("refund");
    forms.push(act("refund", "Give tokens back", [back, note], "Refund", false, () => run(() => call("POST", "/v1/refund", {...target, cost: Number(back.field.value), note: note.field.value}), "Refunded.")));
  }
  const sure = input("I am sure", {id: "reset-sure", type: "checkbox", required: true}, "line"), why = noteField("reset");
  forms.push(act("reset", "Make the bucket full; its reservations and holds end", [sure, why], "Reset", true, () => {
    sure.field.checked = false;
    run(() => call("POST", "/v1/reset", {...target, note: why.field.value}), "The bucket is full.");
  }));
  return [h("h2", {}, "Do something about it"), ...forms];
}

// noteField is a field for a note, which is kept in the audit.
function noteField(id) {
  return input("note", {id: id + "-note", maxlength: 1024, placeholder: "why, and for whom"}, "wide");
}

// lasting is the body of an override's end and note.
function lasting(length, note) {
  const body = {};
  if (length.field.value) body.for = length.field.value;
  if (note.field.value) body.note = note.field.value;
  return body;
}

function overrideForms(limit, k, run) {
  const path = limitPath(limit.name, "/overrides"), forms = [], key = k === null ? {} : {key: k};
  const set = (body, done) => run(() => call("PUT", path, {...key, ...body}), done);
  const fields = (id) => [input("for (empty: no end)", {id: id + "-for", value: "1h", size: 6}), noteField(id)];
  if (limit.algorithm === "concurrency") {
    const burst = input("at most held", {id: "raise-burst", type: "number", min: 1, value: limit.capacity, required: true}), [length, note] = fields("raise");
    forms.push(act("raise", "Raise or lower this key", [burst, length, note], "Set", false, () => set({burst: Number(burst.field.value), ...lasting(length, note)}, "Set.")));
  } else {
    const rate = input("rate", {id: "raise-rate", type: "number", min: 1, value: limit.rate, required: true}), per = input("per", {id: "raise-per", value: limit.per, size: 6, required: true});
    const burst = input("burst", {id: "raise-burst", type: "number", min: 0, value: limit.capacity, required: true}), [length, note] = fields("raise");
    const windows = limit.algorithm === "fixed_window" || limit.algorithm === "interval"; // they keep per
    forms.push(act("raise", "Raise or lower this key", [rate, ...(windows ? [] : [per]), burst, length, note], "Set", false, () => set({rate: Number(rate.field.value),
      ...(windows ? {} : {per: per.field.value}), burst: Number(burst.field.value), ...lasting(length, note)}, "Set.")));
  }
  const plans = Object.entries(limit.plans ?? {}), blocking = plans.find(([, p]) => p.mode === "blocked");
  if (plans.length > 0) {
    const plan = h("select", {id: "plan", required: true}, [h("option", {value: ""}, "choose one"), ...plans.map(([n]) => h("option", {value: n}, n))]), [length, note] = fields("give");
    forms.push(act("give", "Give it a plan", [{label: h("label", {}, "plan", plan)}, length, note], "Give", false, () => set({plan: plan.value, ...lasting(length, note)}, "Given.")));
  }
  if (blocking) {
    const [length, note] = fields("block");
    forms.push(act("block", `Block it, by the plan ${blocking[0]}`, [length, note], "Block", true, () => set({plan: blocking[0], ...lasting(length, note)}, "Blocked.")));
  }
  const note = noteField("end");
  forms.push(act("end", "End its override", [note], "End", false, () => run(() => call("DELETE", path + "?" + new URLSearchParams({...key, note: note.field.value})), "Ended.")));
  return forms;
}

// lister lists live keys of a limit that keeps their text.
function lister(limit, signal) {
  if (limit.keys !== "list") return h("p", {class: "quiet"}, "Keys of this limit cannot be listed in every store; with keys: list they can.");
  const list = h("div"), prefix = h("input", {id: "prefix", autocomplete: "off"});
  const show = async (after) => {
    try {
      const q = new URLSearchParams({n: 50, prefix: prefix.value});
      if (after !== undefined) q.set("after", after);
      const page = await call("GET", limitPath(limit.name, "/keys?" + q), undefined, signal);
      list.replaceChildren(table([["key", "key"], ["free", "n"], ["full in", "n"]],
        page.keys.map((x) => [h("a", {href: keyLink(limit.name, x.key)}, keyName(x.key)), count(x.remaining), x.reset_after_us === null ? "" : span(x.reset_after_us)]), "No live keys."),
      page.next === null ? "" : h("button", {onclick: () => show(page.next)}, "Next page"));
    } catch (err) {
      say(err.message);
    }
  };
  return h("section", {}, h("h2", {}, "Live keys of this limit"),
    h("form", {id: "list", onsubmit: (e) => { e.preventDefault(); show(); }}, h("label", {class: "wide"}, "begin with", prefix), h("button", {}, "List")), list);
}
