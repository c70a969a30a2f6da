/**
 * Subject: the package as users get it, from dist/. `npm run bench` builds it first.
 *
 * The suites themselves run through tsx, which wraps functions to keep their names. Measured code must not pay for that,
 * so it is loaded from the build and only its types come from the sources.
 *
 * @module
 */

import { existsSync } from 'node:fs'
import type * as Brokers from '../src/brokers/rabbitmq/index.ts'
import type * as Core from '../src/index.ts'
import type * as Stores from '../src/stores/postgres/index.ts'

/** Where the built package lies. */
export const DIST: URL = new URL('../dist/', import.meta.url)

if (!existsSync(new URL('index.js', DIST))) throw new Error('dist/ is not there: run npm run build first')

const load = async (file: string): Promise<unknown> => await import(new URL(file, DIST).href)

/** `effectively-once` */
export const core: typeof Core = (await load('index.js')) as typeof Core
/** `effectively-once/postgres` */
export const stores: typeof Stores = (await load('stores/postgres/index.js')) as typeof Stores
/** `effectively-once/rabbitmq` */
export const brokers: typeof Brokers = (await load('brokers/rabbitmq/index.js')) as typeof Brokers
