// A worker that computes with dipwell itself, compiled to WebAssembly: see tools.js. The
// worker alone may run WebAssembly, and is loaded only where it is needed.
const ready = load();
ready.catch(() => {}); // each call answers with it

async function load() {
  let answer;
  try {
    await import("./wasm_exec.js"); // of Go; it makes the global Go
    answer = await fetch("dipwell.wasm.gz");
  } catch {
    throw new Error("missing");
  }
  if (!answer.ok) throw new Error("missing");
  const go = new Go();
  const code = new Response(answer.body.pipeThrough(new DecompressionStream("gzip")), {headers: {"Content-Type": "application/wasm"}});
  const {instance} = await WebAssembly.instantiateStreaming(code, go.importObject);
  go.run(instance); // until the worker ends
  return globalThis.dipwell;
}

// replay reads the log a piece at a time, so that a large one needs no memory.
function replay(dipwell, id, candidate, file) {
  const reader = new FileReaderSync();
  return dipwell.replay(candidate, file.name, file.size, (from, to) => new Uint8Array(reader.readAsArrayBuffer(file.slice(from, to))),
    (done, total) => postMessage({id, done, total}));
}

onmessage = async ({data: {id, call, args}}) => {
  try {
    const dipwell = await ready;
    postMessage({id, json: call === "replay" ? replay(dipwell, id, ...args) : dipwell[call](...args)});
  } catch (err) {
    postMessage({id, error: err.message});
  }
};
