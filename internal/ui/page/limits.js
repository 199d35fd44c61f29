// The view Limits: all definitions, with what they did in the last hour.
import {html, useState} from "./preact.js";
import {call} from "./api.js";
import {hourOf, perMinute, sums} from "./overview.js";
import {Badge, Choice, Empty, LimitLink} from "./parts.js";
import {may, useAnswer, useShared} from "./state.js";
import {rule, share} from "./words.js";

const first = 60; // limits that are shown at first

export function Limits() {
  const {limits} = useShared(), [find, setFind] = useState(""), [show, setShow] = useState("all"), [all, showAll] = useState(false);
  const [hour] = useAnswer((signal) => hourOf(signal), [], 20000), did = hour ? sums(hour) : {};
  const refusing = (l) => (did[l.name]?.refused ?? 0) > 0, shadowed = (l) => l.mode === "shadow";
  const fits = (l) => l.name.includes(find.trim()) && (show === "all" || (show === "refusing" ? refusing(l) : shadowed(l)));
  const rows = tree(limits, did).filter(({l}) => fits(l)), shown = all ? rows : rows.slice(0, first), quiet = limits.filter((l) => !did[l.name]).length;
  const [of] = useAnswer((signal) => call("GET", "/v1/overrides", undefined, signal), [], 30000);
  return html`<div class="title"><h1>Limits</h1><small>${limits.length}, the most refused first, trees together${quiet > 0 && hour ? `; ${quiet} have no calls in the last hour` : ""}</small>
      ${may("admin") && html`<span class="buttons"><a class="button" href="#/draft">Draft a limit</a></span>`}</div>
    <form class="filters" onSubmit=${(e) => e.preventDefault()}><input id="find-limit" type="search" placeholder="Find a limit" aria-label="Find a limit" value=${find} onInput=${(e) => setFind(e.target.value)}/>
      <${Choice} id="show" label="Show" value=${show} set=${setShow} options=${[["all", "All " + limits.length], ["refusing", "Refusing " + limits.filter(refusing).length], ["shadow", "In shadow " + limits.filter(shadowed).length]]}/>
      <span class="quiet wide last">Calls and refused: the last hour; violet: would be refused</span></form>
    ${limits.length === 0 ? html`<${Empty} title="No limit is defined yet.">Add one to the configuration file, or <a href="playground">try numbers in the Playground</a>.<//>`
    : rows.length === 0 ? html`<${Empty}>No limit is like that.<//>` : html`<div class="scroll"><table id="limits"><thead><tr><th scope="col">Limit</th><th class="wide" scope="col">Base rule</th><th class="wide" scope="col">Plans</th><th class="n wide" scope="col">Overrides</th><th class="n wide" scope="col">Blocked</th><th class="n" scope="col">Calls a minute</th><th class="n" scope="col">Refused</th><th class="wide" scope="col">Changed in</th></tr></thead><tbody>
      ${shown.map(({l, depth}) => {
        const d = did[l.name], o = of && of.next === null || l.name <= of?.next ? of.limits.find((x) => x.limit === l.name) ?? {} : undefined;
        return html`<tr key=${l.name}><td><span class=${depth > 0 ? `tree tree-${Math.min(depth, 3)}` : ""}><${LimitLink} name=${l.name}/></span> ${l.mode === "shadow" && html`<${Badge} kind="shadow">Shadow<//>`}${l.shared && html`<small> shared</small>`}${l.warning && html`<small class="fault"> warning</small>`}<small class="narrow">${rule(l)}</small></td>
          <td class="quiet wide">${rule(l)}</td><td class="wide">${Object.keys(l.plans ?? {}).join(", ")}</td><td class="n wide">${o ? o.overrides || "" : "…"}${o?.more ? "+" : ""}</td><td class="n wide">${o ? o.blocked || "" : "…"}</td>
          <td class="n">${d ? perMinute(d) : ""}</td><td class="n">${d && (l.mode === "shadow" ? html`<span class="shadow">${share(d.shadow, d.calls)}</span>` : share(d.refused, d.calls))}</td><td class="quiet wide">${owners[l.owner] ?? l.owner}</td></tr>`;
      })}</tbody></table></div>${shown.length < rows.length && html`<p><button class="link" onClick=${() => showAll(true)}>${rows.length - shown.length} more limits</button></p>`}`}`;
}

export const owners = {api: "console or API", code: "a program", sql: "SQL"};

// tree returns the limits with their depth: each parent before its children, and of roots
// the one whose tree refused the largest share first.
function tree(limits, did) {
  const names = new Set(limits.map((l) => l.name)), below = (name) => limits.filter((l) => l.parent === name);
  const worst = (l) => Math.max((did[l.name]?.refused ?? 0) / Math.max(1, did[l.name]?.calls ?? 0), ...below(l.name).map(worst)), calls = (l) => did[l.name]?.calls ?? 0;
  const sorted = (list) => list.map((l) => [l, worst(l)]).sort((a, b) => b[1] - a[1] || calls(b[0]) - calls(a[0]) || (a[0].name < b[0].name ? -1 : 1)).map(([l]) => l);
  const out = [], add = (l, depth) => {
    out.push({l, depth});
    for (const c of sorted(below(l.name))) add(c, depth + 1);
  };
  for (const l of sorted(limits.filter((l) => !l.parent || !names.has(l.parent)))) add(l, 0);
  return out;
}
