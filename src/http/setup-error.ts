/**
 * Setup error: a mistake in how a route is set up that only a request can show. The operator is told what it is (onError),
 * the caller only that the request was not carried out (T16).
 *
 * @module
 */

export class SetupError extends TypeError {}
