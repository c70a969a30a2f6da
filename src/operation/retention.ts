/**
 * Retention of outcomes: how long a key stays taken. Stored with each row when it is written, so changing the default
 * never shortens the life of what is there.
 *
 * @module
 */

/** 30 days. */
export const RETENTION_DEFAULT_MS: number = 30 * 24 * 3_600_000
/** Ten years. */
export const RETENTION_MAX_MS: number = 3_650 * 24 * 3_600_000
