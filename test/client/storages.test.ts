import { mkdir, mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { localStorageStorage, memoryStorage, type OperationStorage, type StorageArea } from '../../src/client/index.ts'
import { fileStorage } from '../../src/client/storages/file.ts'
import { storageCases } from './storage-cases.ts'

async function inFolder(work: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-client-'))
  try {
    await work(folder)
  } finally {
    await rm(folder, { recursive: true })
  }
}

/** A `Storage` that lives in a map; the browser's own is used by ./browser.test.ts. */
function area(): StorageArea {
  const items = new Map<string, string>()
  return {
    get length() {
      return items.size
    },
    key: (index) => [...items.keys()][index] ?? null,
    getItem: (key) => items.get(key) ?? null,
    setItem: (key, value) => items.set(key, value),
    removeItem: (key) => items.delete(key),
  }
}

const storages: Readonly<Record<string, (work: (open: () => OperationStorage) => Promise<void>) => Promise<void>>> = {
  memory: (work) => {
    const storage = memoryStorage()
    return work(() => storage)
  },
  localStorage: (work) => {
    const shared = area()
    return work(() => localStorageStorage({ area: shared }))
  },
  file: (work) => inFolder((folder) => work(() => fileStorage({ folder: join(folder, 'pending') }))),
}

describe.each(Object.keys(storages))('storage %s', (kind) => {
  test.each(storageCases)('$name', async ({ run }) => {
    await storages[kind]?.(run)
  })
})

describe('storage file', () => {
  test('T7: folder and files are for their owner only, and nothing else is left over', () =>
    inFolder(async (parent) => {
      const folder = join(parent, 'pending')
      const storage = fileStorage({ folder })
      await storage.write('k-1', 'one')
      await storage.write('k-1', 'two')
      await storage.takeTurn('k-1', { owner: 'me', untilAt: 2_000 }, 1_000)
      await storage.endTurn('k-1', 'me')
      expect(await readdir(folder)).toEqual(['k-1.operation'])
      expect((await stat(folder)).mode & 0o777).toBe(0o700)
      expect((await stat(join(folder, 'k-1.operation'))).mode & 0o777).toBe(0o600)
    }))

  test('T7: what a death in the middle of a write has left is in nobody’s way, and is removed after an hour', () =>
    inFolder(async (folder) => {
      const storage = fileStorage({ folder })
      const left = ['k-1.operation', 'k-1.turn'].flatMap((name) =>
        Array.from({ length: 9 }, (_, at) => join(folder, `${name}.${process.pid}-${at}.tmp`)),
      )
      for (const path of left) await writeFile(path, 'half')
      await storage.write('k-1', 'one')
      expect(await storage.takeTurn('k-1', { owner: 'me', untilAt: 9_000 }, 1_000)).toBeUndefined()
      expect(await storage.entries()).toEqual([{ id: 'k-1', text: 'one' }])
      expect(await readdir(folder)).toHaveLength(left.length + 2)
      const longAgo = new Date(Date.now() - 2 * 3_600_000)
      for (const path of left) await utimes(path, longAgo, longAgo)
      await storage.entries()
      expect((await readdir(folder)).sort()).toEqual(['k-1.operation', 'k-1.turn'])
    }))

  test('a folder that is removed or was not to be had is made when it can be, and a failed write leaves nothing', () =>
    inFolder(async (parent) => {
      const inTheWay = join(parent, 'file')
      await writeFile(inTheWay, '')
      const folder = join(inTheWay, 'pending')
      const storage = fileStorage({ folder })
      await expect(storage.write('k', 'one')).rejects.toThrow('ENOTDIR')
      await rm(inTheWay)
      await storage.write('k', 'one')
      await rm(folder, { recursive: true })
      await storage.write('k', 'two')
      expect(await storage.read('k')).toBe('two')
      // A folder in the place of the entry: the last step fails.
      await mkdir(join(folder, 'other.operation'))
      await expect(storage.write('other', 'one')).rejects.toThrow()
      expect((await readdir(folder)).sort()).toEqual(['k.operation', 'other.operation'])
    }))

  test('the turn of a process that is gone is free at once', () =>
    inFolder(async (folder) => {
      const storage = fileStorage({ folder })
      await storage.takeTurn('k', { owner: 'dead', untilAt: 9_000 }, 1_000)
      const path = join(folder, 'k.turn')
      const turn = JSON.parse(await readFile(path, 'utf8')) as object
      // No process has this id: it is above the largest that Linux gives.
      await writeFile(path, JSON.stringify({ ...turn, pid: 2 ** 30 }))
      expect(await storage.takeTurn('k', { owner: 'next', untilAt: 9_000 }, 1_000)).toBeUndefined()
      expect(await storage.takeTurn('k', { owner: 'late', untilAt: 9_000 }, 1_000)).toMatchObject({ owner: 'next' })
    }))

  test('a turn that cannot be read is in nobody’s way', () =>
    inFolder(async (folder) => {
      const storage = fileStorage({ folder })
      for (const text of ['', '{', 'null', '{"owner":1}']) {
        await writeFile(join(folder, 'k.turn'), text)
        expect(await storage.takeTurn('k', { owner: 'me', untilAt: 9_000 }, 1_000), text).toBeUndefined()
        await storage.endTurn('k', 'me')
      }
    }))

  test('files that are no entries are told as they are, under ids that remove them', () =>
    inFolder(async (folder) => {
      const storage = fileStorage({ folder })
      await storage.write('k-1', 'text')
      await writeFile(join(folder, 'notes.txt'), 'not ours')
      await writeFile(join(folder, 'broken.operation'), 'no first line')
      await writeFile(join(folder, 'moved.operation'), '"k-1"\ntext')
      const entries = await storage.entries()
      expect(entries).toEqual([
        { id: ' broken', text: 'no first line' },
        { id: 'k-1', text: 'text' },
        { id: ' moved', text: '"k-1"\ntext' },
      ])
      for (const { id } of entries) await storage.remove(id)
      expect(await readdir(folder)).toEqual(['notes.txt'])
    }))
})
