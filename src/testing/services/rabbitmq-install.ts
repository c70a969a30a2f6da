/**
 * How a RabbitMQ can be had on this machine: named by AMQP_URL, installed, or installable.
 *
 * @module
 */

import { execFile } from 'node:child_process'
import { access, constants, readdir, realpath, rm, writeFile } from 'node:fs/promises'
import { delimiter, dirname, join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

/** Bound for each apt-get call, milliseconds. */
const APT_TIMEOUT_MS = 180_000
const POLICY = '/usr/sbin/policy-rc.d'

export interface RabbitSearch {
  /** Whether a missing server may be installed with apt-get (Debian and root only). Default false. */
  readonly install?: boolean | undefined
  /** Whether AMQP_URL counts. Default true; false for tests that kill their broker. */
  readonly url?: boolean | undefined
}

export type RabbitFound =
  | { readonly kind: 'url'; readonly url: string }
  /** `server` is the start script itself, beside its plugins; never a wrapper that changes user. */
  | { readonly kind: 'server'; readonly server: string; readonly how: string }
  | { readonly kind: 'none'; readonly reason: string }

/** Looks, in this order: AMQP_URL, an installed server, apt-get when allowed. */
export async function findRabbit(search: RabbitSearch = {}): Promise<RabbitFound> {
  const url = process.env['AMQP_URL']
  if (search.url !== false && url !== undefined && url !== '') return { kind: 'url', url }
  const installed = await installedServer()
  if (installed !== undefined) return { kind: 'server', server: installed, how: `installed: ${installed}` }
  if (search.install !== true)
    return { kind: 'none', reason: 'AMQP_URL is not set and no rabbitmq-server is installed' }
  const refusal = await install()
  if (refusal !== undefined) return { kind: 'none', reason: refusal }
  const server = await installedServer()
  return server === undefined
    ? { kind: 'none', reason: 'apt-get installed rabbitmq-server, but its start script is not where it should be' }
    : { kind: 'server', server, how: 'installed just now with apt-get' }
}

/** The server's own start script: it lies in `sbin` beside `plugins`, which the user-changing wrappers do not. */
async function installedServer(): Promise<string | undefined> {
  const candidates = ['/usr/lib/rabbitmq/bin/rabbitmq-server']
  for (const base of ['/usr/lib/rabbitmq/lib', '/opt/rabbitmq', '/opt']) {
    for (const entry of await readdir(base).catch(() => [])) {
      if (entry.startsWith('rabbitmq_server-')) candidates.push(join(base, entry, 'sbin', 'rabbitmq-server'))
    }
  }
  const path = (process.env['PATH'] ?? '').split(delimiter).filter((entry) => entry !== '')
  for (const folder of [...path, '/opt/homebrew/sbin', '/usr/local/sbin'])
    candidates.push(join(folder, 'rabbitmq-server'))
  for (const candidate of candidates) {
    const script = await realpath(candidate).catch(() => undefined)
    if (script === undefined) continue
    const beside = join(dirname(dirname(script)), 'plugins')
    const usable = await Promise.all([access(script, constants.X_OK), access(beside, constants.R_OK)]).catch(
      () => false,
    )
    if (usable !== false) return script
  }
  return undefined
}

/** Installs the distribution's package without starting its service. Returns why not, or undefined when done. */
async function install(): Promise<string | undefined> {
  if (process.getuid?.() !== 0) return 'no rabbitmq-server is installed, and only root can install it'
  if (
    await access('/usr/bin/apt-get').then(
      () => false,
      () => true,
    )
  ) {
    return 'no rabbitmq-server is installed, and this system has no apt-get'
  }
  const environment = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  const apt = (...args: readonly string[]) =>
    run('apt-get', ['-qq', '-o', 'DPkg::Lock::Timeout=60', ...args], { env: environment, timeout: APT_TIMEOUT_MS })
  const forbidden = await forbidServiceStart()
  try {
    const wanted = ['install', '-y', '--no-install-recommends', 'rabbitmq-server']
    await apt(...wanted).catch(async () => {
      await apt('update')
      await apt(...wanted)
    })
    return undefined
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error)
    return `apt-get could not install rabbitmq-server: ${text.trim().split('\n').at(-1)?.slice(0, 200) ?? ''}`
  } finally {
    if (forbidden) await rm(POLICY, { force: true })
  }
}

/** A package must not start a broker on the standard port. Returns whether the policy file is ours to remove. */
async function forbidServiceStart(): Promise<boolean> {
  return writeFile(POLICY, '#!/bin/sh\nexit 101\n', { mode: 0o755, flag: 'wx' }).then(
    () => true,
    () => false,
  )
}
