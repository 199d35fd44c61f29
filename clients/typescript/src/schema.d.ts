// build.mjs writes schema.js from what `dipwell migrate print` prints.
export const version: number;
export const sql: string;
