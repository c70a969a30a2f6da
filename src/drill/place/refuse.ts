/**
 * Refuse: what a drill does not touch. It kills, floods and empties, so it runs only where nothing can be lost.
 *
 * @module
 */

/** Wrong place for a drill; the message says what would make it a right one. */
export class DrillRefused extends Error {
  override readonly name = 'DrillRefused'
}

export interface Permissions {
  /** Hosts outside of this machine that may be reached. */
  readonly allowHosts: readonly string[]
  /** Name of a database that may be used although nothing about it says that it is throw-away. */
  readonly throwAway: string | undefined
}

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)$/i
const THROW_AWAY_NAME = /(^|[_-])(drill|test|tests|testing|tmp|temp|scratch|throwaway|ci)([_-]|\d*$)/i
/** Keys that move real money or mail, as providers mark them. */
const LIVE_KEY = /\b(?:(?:sk|rk|pk|rzp|key|api)_live_[A-Za-z0-9]{8,}|live_[A-Za-z0-9]{24,})/

/** A database with this table is throw-away. */
export const MARKER_TABLE = 'effectively_once_throw_away'

/** @throws {DrillRefused} for a host that is not this machine and not allowed by name. */
export function refuseHost(url: string, what: string, { allowHosts }: Permissions): void {
  const { hostname } = new URL(url)
  if (LOOPBACK.test(hostname) || allowHosts.includes(hostname)) return
  throw new DrillRefused(
    `${what} is on ${hostname}, which is not this machine; allow it by name with --allow-host ${hostname}`,
  )
}

/** @throws {DrillRefused} for a database that nothing marks as throw-away. `hasMarker` looks for the marker table. */
export async function refuseDatabase(
  url: string,
  permissions: Permissions,
  hasMarker: () => Promise<boolean>,
): Promise<void> {
  refuseHost(url, 'the database', permissions)
  const name = decodeURIComponent(new URL(url).pathname.slice(1))
  if (permissions.throwAway === name || THROW_AWAY_NAME.test(name) || (await hasMarker())) return
  throw new DrillRefused(
    `database ${name} is not marked as throw-away: give it a name with "drill" or "test" in it, create the table ` +
      `${MARKER_TABLE} in it, or say --throw-away ${name}`,
  )
}

/** @throws {DrillRefused} when an environment variable or the drill file holds a live key of a provider. */
export function refuseLiveKeys(env: Readonly<Record<string, string | undefined>>, source: string): void {
  const variable = Object.keys(env).find((name) => LIVE_KEY.test(env[name] ?? ''))
  if (variable !== undefined) {
    throw new DrillRefused(`${variable} holds a live key of a provider; a drill repeats calls on purpose, so unset it`)
  }
  if (hasLiveKey(source)) {
    throw new DrillRefused('the drill file holds a live key of a provider; a drill repeats calls on purpose')
  }
}

/** Whether a text holds a key that a provider marks as live. */
export const hasLiveKey = (text: string): boolean => LIVE_KEY.test(text)
