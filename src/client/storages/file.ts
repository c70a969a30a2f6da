/**
 * The door `effectively-once/client/file`: operations as files, for Node.js. The rest of the client uses web APIs only.
 *
 * @module
 */

import { createHash, randomUUID } from 'node:crypto'
import { link, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { inTheWay, type OperationStorage, type Turn, turnOf } from '../storage.ts'

export type { OperationStorage, StoredEntry, Turn } from '../storage.ts'

export interface FileStorageOptions {
  /** Where the files lie; made when missing, for this user only: the requests are in them. */
  readonly folder: string
}

const ENTRY = '.operation'
const TURN = '.turn'
/** Names of files have at most 255 bytes. */
const NAME_MAX = 200

/** Each operation is a file of its own, replaced as a whole and on disk before a write resolves. */
export function fileStorage({ folder }: FileStorageOptions): OperationStorage {
  const path = (id: string, suffix: string): string => join(folder, fileName(id) + suffix)
  // Each time: somebody may have removed it, or mended what kept it from being made.
  const ready = () => mkdir(folder, { recursive: true, mode: 0o700 })

  /** Written beside, flushed, then renamed, so that a reader sees the old text or the new one. */
  const replace = async (target: string, text: string): Promise<void> => {
    await ready()
    const beside = besideOf(target, HALF)
    try {
      const file = await open(beside, 'wx', 0o600)
      try {
        await file.writeFile(text)
        await file.sync()
      } finally {
        await file.close()
      }
      await rename(beside, target)
    } catch (error) {
      await rm(beside, { force: true })
      throw error
    }
    await syncFolder(folder)
  }

  return {
    name: `file:${folder}`,
    sharedBy: 'host',
    async entries() {
      await ready()
      const all = await readdir(folder)
      await sweep(folder, all)
      const names = all.filter((name) => name.endsWith(ENTRY)).sort()
      const read = names.map(async (name) => ({ name, content: await textOf(join(folder, name)) }))
      return (await Promise.all(read)).flatMap(({ name, content }) =>
        content === undefined ? [] : [entryOf(name, content)],
      )
    },
    async read(id) {
      const content = await textOf(path(id, ENTRY))
      return content === undefined ? undefined : entryOf(fileName(id) + ENTRY, content).text
    },
    async write(id, text) {
      await replace(path(id, ENTRY), `${JSON.stringify(id)}\n${text}`)
    },
    async remove(id) {
      await rm(path(id, ENTRY), { force: true })
      await syncFolder(folder)
    },
    async takeTurn(id, turn, now) {
      await ready()
      const target = path(id, TURN)
      const content = JSON.stringify({ ...turn, host: hostname(), pid: process.pid })
      for (;;) {
        if (await createWhole(target, content)) return undefined
        const old = await textOf(target)
        if (old === undefined) continue
        const found = turnOf(old)
        if (inTheWay(found, turn.owner, now) && !isDead(old)) return found
        if (found?.owner === turn.owner) {
          await replace(target, content)
          return undefined
        }
        await takeAway(target, old)
      }
    },
    async endTurn(id, owner) {
      const target = path(id, TURN)
      const old = await textOf(target)
      if (turnOf(old)?.owner === owner) await rm(target, { force: true })
    },
  }
}

/** What a process that died has left behind in the middle of a write: never read, and removed after this time. */
const HALF = '.tmp'
const ASIDE = '.old'
const LEFT_BEHIND_MS = 3_600_000

/** Not by the process's id and a count: after a restart in a container both begin anew. */
function besideOf(target: string, suffix: string): string {
  return `${target}.${randomUUID()}${suffix}`
}

async function sweep(folder: string, names: readonly string[]): Promise<void> {
  for (const name of names) {
    if (!name.endsWith(HALF) && !name.endsWith(ASIDE)) continue
    const path = join(folder, name)
    const found = await stat(path).catch(() => undefined)
    if (found !== undefined && Date.now() - found.mtimeMs > LEFT_BEHIND_MS) await rm(path, { force: true })
  }
}

/** A name that says the id where it can; ids are visible ASCII, so a space marks files that no id leads to. */
function fileName(id: string): string {
  if (id.startsWith(' ')) return id.slice(1)
  const encoded = encodeURIComponent(id).replaceAll('.', '%2E')
  if (encoded.length <= NAME_MAX) return encoded
  return `${encoded.slice(0, 100)}.${createHash('sha256').update(id).digest('hex')}`
}

function entryOf(name: string, content: string): { readonly id: string; readonly text: string } {
  const end = content.indexOf('\n')
  const file = name.slice(0, -ENTRY.length)
  try {
    const id: unknown = JSON.parse(content.slice(0, Math.max(0, end)))
    if (typeof id === 'string' && fileName(id) === file) return { id, text: content.slice(end + 1) }
  } catch {
    // Not an entry as we write it: told as it is.
  }
  return { id: ` ${file}`, text: content }
}

async function textOf(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

/** Whether the turn was taken by a process of this machine that is gone. */
function isDead(text: string): boolean {
  const { host, pid } = JSON.parse(text) as Turn & { readonly host?: unknown; readonly pid?: unknown }
  if (host !== hostname() || typeof pid !== 'number') return false
  try {
    process.kill(pid, 0)
    return false
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH'
  }
}

/**
 * Makes a file that is there with all of its text or not at all; false when there is one. A file that is created and then
 * written can be read in between, and an empty turn is in nobody's way.
 */
async function createWhole(target: string, text: string): Promise<boolean> {
  const beside = besideOf(target, HALF)
  try {
    await writeFile(beside, text, { flag: 'wx', mode: 0o600 })
    await link(beside, target)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  } finally {
    await rm(beside, { force: true })
  }
}

/** Removes the turn that was read, and puts back another one that had come in between. */
async function takeAway(target: string, old: string): Promise<void> {
  const aside = besideOf(target, ASIDE)
  try {
    await rename(target, aside)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw error
  }
  const taken = await textOf(aside)
  if (taken !== undefined && taken !== old) await link(aside, target).catch(() => undefined)
  await rm(aside, { force: true })
}

/** A rename or removal is on disk when its folder is. Some systems cannot sync folders; they need not. */
async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r').catch(() => undefined)
  await handle?.sync().catch(() => undefined)
  await handle?.close()
}
