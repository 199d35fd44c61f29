// The page What if: an access log decided by two limits, by the replay of dipwell.
import {count, h, span, table} from "./dom.js";
import {lines} from "./chart.js";
import {openPage} from "./menu.js";
import {Engine, field, read, write} from "./tools.js";

const fields = {
  a: field("a", "page=10/10s,burst=20", {required: true}), b: field("b", "page=10/10s,burst=50", {required: true}),
  by: field("by", "ip", {size: 12, list: "bys"}), cost: field("cost", "1", {size: 8}), where: field("where", "", {placeholder: "path~^/api/"}),
  pattern: field("pattern", "", {placeholder: "as recognized, or a grok pattern", list: "patterns"}),
};
const labels = {a: "limit A", b: "limit B", by: "key", cost: "tokens each", where: "only lines with", pattern: "log format"};
const label = (name) => h("label", {class: ["a", "b", "where", "pattern"].includes(name) && "grow"}, labels[name], fields[name]);

const file = h("input", {id: "log", type: "file"}), run = h("button", {id: "run"}, "Compare");
const note = h("p", {id: "note", class: "quiet", role: "status"}), result = h("div", {id: "result"});
openPage("What if");
let engine = new Engine(), working = false;

async function compare(e) {
  e?.preventDefault();
  if (working) { // stop it
    engine.end();
    engine = new Engine();
    done("Stopped.");
    return;
  }
  const log = file.files[0];
  if (!log) {
    done("Choose a log first, or drop one on this page.");
    return;
  }
  working = true;
  run.textContent = "Stop";
  result.replaceChildren();
  const mine = engine, reports = [];
  try {
    for (const name of ["a", "b"]) {
      const candidate = {limit: fields[name].value.trim(), by: fields.by.value.trim(), cost: fields.cost.value.trim(), pattern: fields.pattern.value.trim(), where: fields.where.value.trim() ? [fields.where.value.trim()] : []};
      note.textContent = `Limit ${name.toUpperCase()} …`;
      reports.push(await mine.call("replay", [JSON.stringify(candidate), log], (part, all) => {
        if (all > 0) note.textContent = `Limit ${name.toUpperCase()}: ${Math.floor(100 * part / all)} %`;
      }));
    }
    done("");
    show(reports);
  } catch (err) {
    if (mine === engine) done(err.message, true);
  }
}

function done(text, wrong) {
  working = false;
  run.textContent = "Compare";
  note.textContent = text;
  note.className = wrong ? "fault" : "quiet";
}

const time = (us) => new Date(us / 1000).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
const share = (part, all) => (all === 0 ? "–" : (100 * part / all).toFixed(2) + " %");

// show shows two reports of one log.
function show([a, b]) {
  const [x, y] = [a.limits[0], b.limits[0]];
  result.append(
    h("p", {}, `${a.log}: ${count(a.requests)} requests of ${count(a.keys)} ${a.keys === 1 ? "key" : "keys"}` + (a.first_us === null ? "" : `, ${time(a.first_us)} to ${time(a.last_us)}`) +
      (a.malformed > 0 ? `; ${count(a.malformed)} lines were left out, such as line ${a.malformed_lines[0].line}: ${a.malformed_lines[0].reason}` : "") +
      (a.filtered > 0 ? `; ${count(a.filtered)} lines do not match` : "") + "."),
    table([["which", ""], ["limit", "key"], ["granted", "n"], ["refused", "n"], ["share refused", "n"], ["keys refused", "n"], ["longest wait", "n"]],
      [["A", x], ["B", y]].map(([name, l]) => [name, l.limit, count(l.granted), count(l.refused), share(l.refused, l.refused + l.granted), count(l.keys_refused), l.refused > 0 ? span(l.longest_wait_us) : "–"]), ""),
    [x, y].filter((l) => l.warning).map((l) => h("p", {class: "quiet"}, l.warning)), chart(a.over_time, b.over_time),
    h("div", {class: "pair"}, worst("A", x), worst("B", y)));
}

// chart draws what both refused over time.
function chart(x, y) {
  const n = Math.max(x.refused.length, y.refused.length);
  if (n === 0) return "";
  const most = Math.max(1, ...x.refused, ...y.refused), pad = (list) => Array.from({length: Math.max(2, n)}, (_, i) => list[i] ?? 0);
  return h("figure", {}, lines([{kind: "first", values: pad(x.refused)}, {kind: "second", values: pad(y.refused)}], Math.max(2, n), "Refused over time"),
    h("figcaption", {class: "scale"}, h("span", {}, time(x.start_us)), h("span", {}, h("i", {class: "swatch"}), "refused by A"), h("span", {}, h("i", {class: "swatch refused"}), "refused by B"),
      h("span", {}, `top of the chart: ${count(most)} in ${span(x.width_us)}`)));
}

function worst(name, l) {
  return h("section", {}, h("h2", {}, `Worst keys of ${name}`), table([["key", "key"], ["refused", "n"], ["granted", "n"], ["longest wait", "n"]],
    l.worst.map((k) => [k.key === "" ? h("i", {}, "one bucket for all") : k.key, count(k.refused), count(k.granted), span(k.longest_wait_us)]), "None is refused."));
}

addEventListener("hashchange", () => { if (location.hash !== "#view") read(fields); });
addEventListener("dragover", (e) => e.preventDefault());
addEventListener("drop", (e) => {
  e.preventDefault();
  if (working || e.dataTransfer.files.length === 0) return;
  file.files = e.dataTransfer.files;
  compare();
});
document.getElementById("view").append(h("h1", {}, "What if"),
  h("p", {class: "quiet"}, "What would two limits have done to an access log? The log stays in this browser, where dipwell's own code decides it: nothing is uploaded. Logs of web servers and load balancers, JSON and CSV, gzipped or not; others by a grok pattern. The address has the settings."),
  h("form", {id: "compare", oninput: (e) => { if (e.target !== file) write(fields); }, onsubmit: compare},
    h("label", {class: "grow"}, "access log", file), label("by"), label("cost"), label("where"), label("pattern"),
    h("datalist", {id: "bys"}, ["ip", "user", "path", "none"].map((value) => h("option", {value}))),
    h("datalist", {id: "patterns"}, ["combined", "vhost_combined", "json", "csv", "alb", "elb", "haproxy", "envoy", "w3c"].map((value) => h("option", {value}))), h("div", {class: "row both"}, label("a"), label("b")), run),
  note, result);
read(fields);
