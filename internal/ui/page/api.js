// Calls of the service's API. The token is kept here, in memory.
import {setClock} from "./words.js";

let token = "";
let asking; // the promise of a token that is being typed
let tell = () => {};

// listen calls f with why a call got no answer, and with null after one that did.
export function listen(f) { tell = f; }

// A Refused call of the API: its problem document says why.
class Failure extends Error {
  constructor(status, problem) {
    super((problem.field ? problem.field + ": " : "") + (problem.detail ?? problem.title ?? "status " + status));
    this.status = status;
    this.field = problem.field;
    this.reason = problem.detail ?? problem.title ?? "status " + status;
  }
}

// call returns the JSON of an answer, also that of a decision that refuses, or null.
export async function call(method, path, body, signal) {
  const r = await send(method, path, body, signal);
  if (r.status === 204) return null;
  const answer = await r.json().catch(() => ({}));
  if (!r.ok && answer.allowed === undefined) throw new Failure(r.status, answer);
  return answer;
}

async function send(method, path, body, signal) {
  for (;;) {
    const used = token;
    const headers = {};
    if (used) headers.Authorization = "Bearer " + bytes(used);
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const r = await fetch(path, {method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body)}).catch((err) => {
      if (err.name !== "AbortError") tell(err.name === "TimeoutError" ? "no answer in time" : err.message);
      throw err;
    });
    tell(null);
    if (r.headers.has("Date")) setClock(Date.parse(r.headers.get("Date")));
    if (r.status !== 401) return r;
    if (used === token) await ask(used !== ""); // else another call has asked meanwhile
  }
}

// bytes returns a text whose characters are the bytes of UTF-8 of another: fetch throws for
// a header field with any other character.
const bytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

// ask lets somebody type the token.
function ask(wrong) {
  asking ??= new Promise((done) => {
    const dialog = document.getElementById("login"), input = document.getElementById("token");
    if (wrong) document.getElementById("login-why").textContent = "That is not a token of this service.";
    dialog.addEventListener("cancel", (e) => e.preventDefault());
    dialog.addEventListener("close", () => {
      token = input.value;
      input.value = "";
      asking = undefined;
      done();
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

// limitPath is the path of a limit's calls.
export const limitPath = (name, below = "") => "/v1/limits/" + encodeURIComponent(name) + below;

// everyLimit returns all definitions, at most 10,000.
export async function everyLimit(signal) {
  let all = [], next = "";
  for (let pages = 0; next !== null && pages < 10; pages++) {
    const page = await call("GET", "/v1/limits?n=1000&after=" + encodeURIComponent(next), undefined, signal);
    all = all.concat(page.limits);
    next = page.next;
  }
  return all;
}
