// The view Changes: what people have changed, and why.
import {html, useState} from "./preact.js";
import {call} from "./api.js";
import {note, wordsOf} from "./history.js";
import {KeyLink, LimitLink, Loaded, Table} from "./parts.js";
import {useAnswer} from "./state.js";
import {day, minute} from "./words.js";

export function Changes({query}) {
  const limit = query.get("limit") ?? "", [field, set] = useState(limit), [wrong, say] = useState(""), [pages, more] = useState([]);
  const answer = useAnswer((signal) => page(limit, "", signal), [limit], 15000);
  return html`<div class="title"><h1>Changes</h1><small>by the page, the API, the command line and SQL: the last 10,000, for at most 400 days</small></div>
    <form class="filters" id="filter" onSubmit=${(e) => {
      e.preventDefault();
      more([]);
      location.hash = "#/changes" + (field && "?" + new URLSearchParams({limit: field}));
    }}><input id="audit-limit" aria-label="Of the limit" placeholder="Of the limit; empty: all" value=${field} onInput=${(e) => set(e.target.value)} autocomplete="off"/><button>Show</button><span class="quiet wide last">Changes of a configuration file and of programs are not among them</span></form>
    ${wrong && html`<p class="fault" role="alert">${wrong}</p>`}
    <${Loaded} answer=${answer}>${(first) => {
      const list = [first, ...pages], next = list.at(-1).next;
      return html`<${Table} columns=${[["When", "time"], ["Limit", "wide"], ["Customer", ""], ["What", ""], ["In full", "quiet wide what"], ["Who and why", ""]]} empty="Nothing was changed." rows=${list.flatMap((p) => p.entries).map((e) => [
        [day(Date.parse(e.at)), minute(Date.parse(e.at))].filter(Boolean).join(" "), html`<${LimitLink} name=${e.limit}/>`, e.key === undefined ? "" : html`<${KeyLink} of=${e.key} limit=${e.limit}/>`, wordsOf(e), e.what ?? "", note(e)])}/>
        ${next !== null && html`<p><button class="link" onClick=${() => page(limit, next).then((p) => more([...pages, p]), (err) => say(err.message))}>Older</button></p>`}`;
    }}<//>`;
}

const page = (limit, before, signal) => call("GET", "/v1/audit?" + new URLSearchParams({n: 50, ...(limit && {limit}), ...(before && {before})}), undefined, signal);
