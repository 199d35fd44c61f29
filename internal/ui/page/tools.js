// What the pages Playground and What if share: the worker that computes, and settings that
// are in the address.
import {h} from "./dom.js";

// The service's policy lets no text become the address of a script, but for this one.
const policy = globalThis.trustedTypes?.createPolicy("engine", {createScriptURL: () => "engine.js"});

const missing = "This program was built without it: the archives and images of a release have it, and so has what `make build` builds in a clone.";

// An Engine is the worker. Calls are answered in their order.
export class Engine {
  #worker;
  #waiting = new Map();
  #last = 0;

  constructor() {
    this.#worker = new Worker(policy ? policy.createScriptURL("") : "engine.js", {type: "module"});
    this.#worker.onmessage = ({data}) => {
      const w = this.#waiting.get(data.id);
      if (data.total !== undefined) {
        w.progress?.(data.done, data.total);
        return;
      }
      this.#waiting.delete(data.id);
      if (data.error !== undefined) {
        w.no(new Error(data.error === "missing" ? missing : data.error));
        return;
      }
      const answer = JSON.parse(data.json);
      if (answer.error === undefined) w.yes(answer.answer);
      else w.no(new Error((answer.field ? answer.field + ": " : "") + answer.error));
    };
    this.#worker.onerror = (e) => {
      for (const w of this.#waiting.values()) w.no(new Error(e.message || missing));
      this.#waiting.clear();
    };
  }

  // call calls a function of the engine, and returns its answer.
  call(name, args, progress) {
    return new Promise((yes, no) => {
      this.#waiting.set(++this.#last, {yes, no, progress});
      this.#worker.postMessage({id: this.#last, call: name, args});
    });
  }

  end() { this.#worker.terminate(); }
}

// read sets fields by the address, #rate=5&per=1s.
export function read(fields) {
  const q = new URLSearchParams(location.hash.slice(1));
  for (const [name, f] of Object.entries(fields)) f.value = q.get(name) ?? f.dataset.usual;
}

// write puts those fields into the address that are not as usual.
export function write(fields) {
  const q = new URLSearchParams(Object.entries(fields).filter(([, f]) => f.value !== f.dataset.usual).map(([name, f]) => [name, f.value]));
  history.replaceState(null, "", q.size > 0 ? "#" + q : location.pathname);
}

// field is an input, or a select of choices, with the value that it has usually.
export function field(name, usual, props, choices) {
  const p = {id: name, "data-usual": usual, ...props};
  return choices ? h("select", p, choices.map(([value, text]) => h("option", {value}, text))) : h("input", {autocomplete: "off", spellcheck: "false", ...p});
}
