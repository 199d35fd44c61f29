export { Dipwell, Hold, install, key } from "./dipwell.js";
export { DipwellError } from "./errors.js";
export type { HttpOptions } from "./http.js";
export { predict, type Bucket, type Prediction } from "./predict.js";
export type { Query } from "./sql.js";
export type {
  Answer, AnswerOfAll, CostOptions, Decision, HoldOptions, Installed, Limit, Plan, Settled, Take, TakeOptions, WaitOptions,
} from "./types.js";
export type { Duration } from "./units.js";
