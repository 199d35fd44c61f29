// Charts in SVG at their real width, which the pointer and the arrow keys read out.
import {html, useState} from "./preact.js";
import {useWidth} from "./parts.js";
import {at, brief, count, minute, span} from "./words.js";

// nice is the smallest round number that is not less, so that its half is round too.
function nice(n) {
  if (n <= 2) return Math.max(1, Math.ceil(n));
  const size = 10 ** Math.floor(Math.log10(n));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((m) => m * size >= n) * size;
}

const left = 42, bottom = 16;
const inTank = (n) => (n >= 1e7 ? brief(n) : count(n)); // what a tank has room for

// Panes are two charts over the same times, each with its own axis that begins at 0: above
// the line or bars of one series, below the bars of what was refused. times are in ms, and
// step is how far they are apart.
export function Panes({label, times, step, high, low, most, bars, wide = 800, tick, read}) {
  const [ref, width] = useWidth(wide), [chosen, choose] = useState(-1);
  const n = times.length, x = (i) => left + (width - left - 2) * (i + 0.5) / n, gap = (width - left - 2) / n, bar = Math.max(1, gap * (bars ? 0.72 : 0.62));
  const top = nice(Math.max(1, ...high.values.map((v) => v ?? 0), most?.value ?? 0)), topLow = nice(Math.max(1, ...low.values.map((v) => v ?? 0)));
  const y = (v) => 122 - 104 * v / top, yLow = (v) => 188 - 38 * v / topLow;
  const known = high.values.map((v, i) => [x(i), v]).filter(([, v]) => v !== null);
  const line = known.map(([px, v]) => `${px.toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const block = (values, f, base) => values.map((v, i) => (v ? `M${(x(i) - bar / 2).toFixed(1)} ${base}V${Math.min(base - 1, f(v)).toFixed(1)}h${bar.toFixed(1)}V${base}Z` : "")).join("");
  const move = (e) => {
    const r = e.currentTarget.getBoundingClientRect();
    choose(Math.max(0, Math.min(n - 1, Math.floor((e.clientX - r.left - left) / gap))));
  };
  const key = (e) => {
    const by = {ArrowLeft: -1, ArrowRight: 1, Home: -n, End: n}[e.key];
    if (by === undefined) return;
    e.preventDefault();
    choose(chosen < 0 ? n - 1 : Math.max(0, Math.min(n - 1, chosen + by)));
  };
  const ticks = times.map((t, i) => [i, tick(t, i)]).filter(([, text]) => text);
  return html`<figure ref=${ref} class="read" tabindex="0" role="group" aria-label=${label + "; arrow keys read it out"} onKeyDown=${key} onBlur=${() => choose(-1)}>
    <svg class="chart" width=${width} height=${188 + bottom + 4} viewBox=${`0 0 ${width} ${188 + bottom + 4}`} role="img" aria-label=${label} onPointerMove=${move} onPointerLeave=${() => choose(-1)}>
      <text x="0" y="10">${high.label}</text>
      ${[[0, "base"], [top / 2, "grid"], [top, "grid"]].filter(([v]) => Number.isInteger(v)).map(([v, kind]) => html`<path class=${kind} d=${`M${left} ${y(v)}H${width - 2}`}/><text x=${left - 6} y=${y(v) + 4} text-anchor="end">${brief(v)}</text>`)}
      ${bars ? html`<path class="bar" d=${block(high.values, y, 122)}/>` : known.length > 0 && html`<polygon class="area" points=${`${known[0][0]},122 ${line} ${known.at(-1)[0]},122`}/><polyline class="line" points=${line}/>${known.length === 1 && html`<circle class="dot-allowed" cx=${known[0][0]} cy=${y(known[0][1])} r="2.5"/>`}`}
      ${most && html`<path class="most" d=${`M${left} ${y(most.value).toFixed(1)}H${width - 2}`}/><text class="mark" x=${left + 4} y=${y(most.value) - 5}>${most.text}</text>`}
      <text x="0" y="142">${low.label}</text>
      ${[[0, "base"], [topLow, "grid"]].map(([v, kind]) => html`<path class=${kind} d=${`M${left} ${yLow(v)}H${width - 2}`}/><text x=${left - 6} y=${yLow(v) + 4} text-anchor="end">${brief(v)}</text>`)}
      <path class="bar-refused" d=${block(low.values, yLow, 188)}/>
      ${ticks.map(([i, text]) => html`<path class="grid" d=${`M${x(i).toFixed(1)} 188v4`}/><text x=${x(i).toFixed(1)} y="204" text-anchor=${i === 0 ? "start" : i === n - 1 ? "end" : "middle"}>${text}</text>`)}
      ${chosen >= 0 && html`<path class="cursor" d=${`M${x(chosen).toFixed(1)} 18V188`}/>`}
    </svg>
    <output class="readout" aria-live="polite">${chosen >= 0 ? read(chosen) : ""}</output>
  </figure>`;
}

// minutes marks the first and the last minute, and the quarters whose text has room on a phone.
export const minutes = (times) => (t, i) => (i === 0 || i === times.length - 1 ? minute(t) : new Date(t).getUTCMinutes() % 15 === 0 && i > 9 && i < times.length - 10 ? minute(t) : "");

// Spark is the share refused over time, on a scale that all rows of a table have.
export function Spark({values, most}) {
  if (!values.some((v) => v > 0)) return "";
  const points = values.map((v, i) => `${(96 * i / (values.length - 1)).toFixed(1)} ${(18 - 16 * Math.min(1, (v ?? 0) / most)).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 96 20" aria-hidden="true"><path class="base" d="M0 18.5H96"/><path d=${"M" + points.join(" ")}/></svg>`;
}

// Bucket is the tank as it is now, and how it fills if nobody calls, until a call of need
// tokens passes at needAt (µs from now). A raise is drawn over it before it is made. What is
// owed lies below its ground.
export function Bucket({x, free, of, owed, unit, need, needAt, raise, wide = 480}) {
  const [ref, width] = useWidth(wide);
  const steps = [[0, free - owed], ...(x.refill ?? [])], end = Math.max(1e6, steps.at(-1)[0]), top = Math.max(1, raise ? Math.max(of, raise.burst) : of);
  const tank = 64, from = tank + 34, y = (v) => 122 - 104 * (v + owed) / (top + owed), ground = y(0), px = (t) => from + (width - from - 4) * Math.min(1, t / end);
  const stairs = x.refill && (x.stairs || x.refill.length < 8);
  const paid = owed && steps[1] ? px(steps[1][0] * owed / (owed + steps[1][1])) : from, inside = !owed && y(free) < 66, middle = inside || owed && 122 - ground > 34 ? (y(free) + 122) / 2 : y(free) - 12;
  let path = "";
  for (const [t, v] of steps.slice(1)) path += stairs ? `H${px(t).toFixed(1)}V${y(v).toFixed(1)}` : `L${px(t).toFixed(1)} ${y(v).toFixed(1)}`;
  path += `H${width - 4}`;
  const shown = need > 0 && needAt > 0 && needAt <= end && need <= of && !raise, lift = raise && (raise.full ?? 0);
  const raised = raise && `M${from} ${y(raise.free).toFixed(1)}` + (lift > 0 && lift < end ? `L${px(lift).toFixed(1)} ${y(raise.burst).toFixed(1)}` : "") + `H${width - 4}`;
  return html`<figure ref=${ref}><svg class="chart" width=${width} height="146" viewBox=${`0 0 ${width} 146`} role="img"
    aria-label=${(owed ? count(owed) + " of debt; " : "") + `${count(free)} of ${count(of)} ${unit} free now` + (x.refill ? `, full in ${span(end)} if nobody calls` : "")}>
    <text x=${tank / 2} y="10" text-anchor="middle">${inTank(top)}</text>
    ${raise && html`<path class="raised" d=${`M1 ${ground}V${y(raise.free).toFixed(1)}H${tank - 1}V${ground}Z`}/><path class="raised-line" d=${`M1 ${y(raise.free).toFixed(1)}H${tank - 1}`}/><text class="raised-text halo" x=${tank / 2} y=${Math.max(24, y(raise.free) - 4).toFixed(1)} text-anchor="middle">${inTank(raise.free)}</text>`}
    ${owed ? html`<path class="owed" d=${`M1 122V${ground}H${tank - 1}V122Z`}/>` : html`<path class="bar" d=${`M1 122V${y(free).toFixed(1)}H${tank - 1}V122Z`}/>`}<path class="tank" d=${`M.5 18V122.5H${tank - 0.5}V18`}/>
    <text x=${tank / 2} y="140" text-anchor="middle">now</text>
    ${x.refill && html`${raised && html`<path class="raised" d=${raised + "V" + ground + "H" + from + "Z"}/>`}
      ${owed > 0 && html`<path class="owed" d=${`M${from} 122V${ground}H${paid}Z`}/>`}<path class="area" d=${`M${paid} ${y(Math.max(0, free - owed)).toFixed(1)}${path}V${ground}H${paid}Z`}/><path class="line" d=${`M${from} ${y(free - owed).toFixed(1)}` + path}/>${raised && html`<path class="raised-line" d=${raised}/><text class="raised-text halo" x=${width - 8} y=${Math.min(112, y(raise.burst) + 16).toFixed(1)} text-anchor="end">raised: ${lift > 0 ? "full " + at(x.now + lift / 1000) : count(raise.free) + " free"}</text>`}
      <path class="base" d=${`M${from} ${ground}H${width - 4}`}/>
      ${shown && html`<path class="need" d=${`M0 ${y(need).toFixed(1)}H${px(needAt).toFixed(1)}V${ground}`}/><circle class="point" cx=${px(needAt).toFixed(1)} cy=${y(need).toFixed(1)} r="4.5"/>
        <text class="mark halo" x=${px(needAt) > width - 190 ? px(needAt) - 10 : px(needAt) + 10} y=${Math.min(116, Math.max(30, y(need) + 16)).toFixed(1)} text-anchor=${px(needAt) > width - 190 ? "end" : "start"}>${count(need)} free at ${at(x.now + needAt / 1000)}</text>`}
      <text x=${from} y="140">${at(x.now)}</text>${width > from + 330 && html`<text x=${(from + width) / 2 - 20} y="140" text-anchor="middle">if nobody calls</text>`}
      <text x=${width - 4} y="140" text-anchor="end">full ${at(x.now + end / 1000)}</text>`}
    <text class=${inside ? "mark inside" : "mark halo"} x=${tank / 2} y=${Math.min(104, Math.max(34, middle - 4))} text-anchor="middle">${inTank(owed || free)}</text>
    <text class=${inside ? "inside" : "halo"} x=${tank / 2} y=${Math.min(117, Math.max(47, middle + 9))} text-anchor="middle">${owed ? "in debt" : "free"}</text>
    ${!x.refill && html`<text x=${from} y="74">${free >= of ? "full" : "how it fills is not known"}</text>`}
  </svg></figure>`;
}

// Holds is a bar for each live hold, from now to when it ends.
export function Holds({x}) {
  const [ref, width] = useWidth(480), holds = x.holds ?? [], shown = holds.slice(0, 12), end = Math.max(1, ...holds.map((h) => h.expires_us / 1000 - x.now));
  const labels = shown.map((h) => `${count(h.tokens)}, ends ${at(h.expires_us / 1000)}`), room = 12 + 6.3 * Math.max(...labels.map((l) => l.length)); // wider if it ends on another day
  const from = Math.round(Math.min(200, width * 0.3)), letters = Math.floor(from / 7), px = (ms) => from + Math.max(0, width - from - room) * Math.max(0.02, ms / end);
  return html`<figure ref=${ref}><svg class="chart" width=${width} height=${shown.length * 22 + 4} viewBox=${`0 0 ${width} ${shown.length * 22 + 4}`} role="img" aria-label=${`${holds.length} live holds`}>
    ${shown.map((h, i) => html`<text x="0" y=${i * 22 + 15}>${h.hold.length > letters ? h.hold.slice(0, letters - 1) + "…" : h.hold}<title>${h.hold}</title></text>
      <path class="bar" d=${`M${from} ${i * 22 + 4}H${px(h.expires_us / 1000 - x.now).toFixed(1)}v14H${from}Z`}/>
      <text class="mark" x=${(px(h.expires_us / 1000 - x.now) + 6).toFixed(1)} y=${i * 22 + 15}>${labels[i]}</text>`)}
  </svg>${holds.length > shown.length && html`<p class="quiet">${count(holds.length - shown.length)} more holds</p>`}</figure>`;
}
