/** A store of hono-rate-limiter; each limiter needs one of its own. */
export { HitStore as DipwellStore, type Hits, type StoreOptions } from "./store.js";
