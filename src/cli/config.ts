/**
 * Configuration: the file that exports the application's `once`, and `relay` for the command of that name.
 *
 * TypeScript goes through tsx of the user's project, or natively where Node strips types by itself.
 *
 * @module
 */

import { existsSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, extname, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Once } from '../once.ts'
import type { RelayOptions } from '../outbox/relay-options.ts'
import { type CliIo, UsageError } from './io.ts'

const NAMES = ['mjs', 'js', 'ts'].map((end) => `effectively-once.config.${end}`)

/** Absolute path of the file that was asked for or that lies in the working folder; undefined when there is none. */
export function findConfig(asked: string | undefined, io: CliIo): string | undefined {
  if (asked !== undefined) {
    const path = resolve(io.cwd, asked)
    if (!existsSync(path)) throw new UsageError(`--config: ${path} does not exist`)
    return path
  }
  return NAMES.map((name) => resolve(io.cwd, name)).find((path) => existsSync(path))
}

/** What a configuration file exports. */
export interface Config {
  /** What `createOnce()` returns. */
  readonly once: Once<unknown>
  /** Options of `once.relay()` for the command `relay`: the broker and whatever differs from the defaults. */
  readonly relay?: RelayOptions | undefined
}

/** Reads a configuration file. */
export async function loadConfig(path: string): Promise<Config> {
  const { once, relay } = (await load(path)) as { readonly once?: unknown; readonly relay?: unknown }
  if (typeof once !== 'object' || once === null || !('migrate' in once) || !('transaction' in once)) {
    throw new UsageError(`${path} must export the object that createOnce() returns as \`once\``)
  }
  if (relay !== undefined && (typeof relay !== 'object' || relay === null || !('broker' in relay))) {
    throw new UsageError(`${path} exports \`relay\`, which must be the options of once.relay(): { broker, ... }`)
  }
  return { once: once as Once<unknown>, relay: relay as RelayOptions | undefined }
}

async function load(path: string): Promise<unknown> {
  const url = pathToFileURL(path).href
  if (!['.ts', '.mts', '.cts'].includes(extname(path))) return import(url)
  const tsx = tsxOf(path)
  if (tsx !== undefined) {
    const loader = (await import(tsx)) as { tsImport(url: string, parent: string): Promise<unknown> }
    return loader.tsImport(url, import.meta.url)
  }
  if ('typescript' in process.features && process.features.typescript !== false) return import(url)
  throw new UsageError(`${path} is TypeScript and tsx was not found beside it; run: npm install --save-dev tsx`)
}

/** The entry of tsx for importing modules. A resolver for `require` would find the one for CommonJS, which cannot. */
function tsxOf(path: string): string | undefined {
  let manifest: string
  try {
    manifest = createRequire(path).resolve('tsx/package.json')
  } catch {
    return undefined
  }
  const { exports } = JSON.parse(readFileSync(manifest, 'utf8')) as {
    readonly exports?: Readonly<Record<string, { readonly import?: { readonly default?: string } } | undefined>>
  }
  const entry = exports?.['./esm/api']?.import?.default
  return entry === undefined ? undefined : pathToFileURL(resolve(dirname(manifest), entry)).href
}
