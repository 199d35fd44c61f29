// Chooses a view by the address: #/overview, #/customer?key=acme, #/limits, #/limit?name=login.
import {Component, html, render, useEffect, useRef, useState} from "./preact.js";
import {Frame} from "./frame.js";
import {Overview} from "./overview.js";
import {Customer} from "./customer.js";
import {Limits} from "./limits.js";
import {Draft, Limit} from "./limit.js";
import {Changes} from "./changes.js";
import {Failed, Skeleton} from "./parts.js";
import {start, useRoute, useShared} from "./state.js";

const views = {overview: Overview, customer: Customer, limits: Limits, limit: Limit, draft: Draft, changes: Changes};

// A Bound shows the error of a view in its place.
class Bound extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({error});
  }

  render() { return this.state.error ? html`<${Failed} error=${this.state.error} retry=${() => this.setState({error: null})}/>` : this.props.children; }
}

function App() {
  const {view, query} = useRoute(), {me} = useShared(), name = Object.hasOwn(views, view) ? view : "overview", View = views[name], main = useRef(), [wrong, setWrong] = useState(null), [turn, again] = useState(0), seen = useRef(view + query);
  useEffect(() => { start().then(() => setWrong(null), setWrong); }, [turn]);
  useEffect(() => {
    document.title = "dipwell: " + (name === "customer" ? query.get("key") ?? query.get("limit") : name === "limit" ? query.get("name") : name);
    if (seen.current !== view + query && document.activeElement !== document.body && document.activeElement?.id !== "view") main.current.focus({preventScroll: true}); // somebody is at work here
    if (seen.current !== view + query) scrollTo(0, 0);
    seen.current = view + query;
  }, [view + query]);
  return html`<${Frame} view=${name}/><main id="view" tabindex="-1" ref=${main}><${Bound} key=${view + (name === "draft" ? "" : query)}>${me ? html`<${View} query=${query}/>` : wrong ? html`<${Failed} error=${wrong} retry=${() => again(turn + 1)}/>` : html`<${Skeleton}/>`}<//></main>`;
}

render(html`<${App}/>`, document.getElementById("app"));
