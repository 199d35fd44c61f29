/** A store of express-rate-limit; each limiter needs one of its own. */
export { HitStore as DipwellStore, type Hits, type StoreOptions } from "./store.js";
