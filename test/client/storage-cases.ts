/**
 * What every storage of the client must do. Plain functions without imports, because they also run inside a browser.
 */
import type { OperationStorage } from '../../src/client/index.ts'

export interface StorageCase {
  readonly name: string
  /** `open` gives another handle of the same storage each time, as another tab or a later run would. */
  readonly run: (open: () => OperationStorage) => Promise<void>
}

function equal(actual: unknown, expected: unknown, what: string): void {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)]
  if (a !== b) throw new Error(`${what}: expected ${b}, got ${a}`)
}

const sorted = async (storage: OperationStorage) =>
  [...(await storage.entries())].sort((a, b) => (a.id < b.id ? -1 : 1)).map(({ id, text }) => [id, text])

/** Every visible character, and the longest key there is. */
const HARD_IDS = [
  Array.from({ length: 94 }, (_, index) => String.fromCharCode(33 + index)).join(''),
  '%'.repeat(255),
  `${'%'.repeat(254)}&`,
  '.',
  '..',
  'A',
  'a',
  '__proto__',
  'constructor',
]

export const storageCases: readonly StorageCase[] = [
  {
    name: 'R01: what was written is read by another handle, unchanged, and gone after its removal',
    async run(open) {
      const text = `{"a":"ü\\u0000\\ud800 \n ${'x'.repeat(100_000)}"}`
      await open().write('k-1', 'old')
      await open().write('k-1', text)
      equal(await open().read('k-1'), text, 'read')
      equal(await sorted(open()), [['k-1', text]], 'entries')
      await open().remove('k-1')
      equal([await open().read('k-1'), await sorted(open())], [undefined, []], 'after removal')
      await open().remove('k-1')
    },
  },
  {
    name: 'ids of every visible character and of full length stay apart',
    async run(open) {
      const storage = open()
      for (const id of HARD_IDS) await storage.write(id, `text of ${id}`)
      for (const id of HARD_IDS) equal(await open().read(id), `text of ${id}`, id)
      equal((await open().entries()).length, HARD_IDS.length, 'number of entries')
      for (const { id, text } of await open().entries()) equal(text, `text of ${id}`, id)
      for (const id of HARD_IDS) await storage.remove(id)
      equal(await sorted(open()), [], 'after removal')
    },
  },
  {
    name: 'a turn is in one hand, can be prolonged by it, and ends by time, by being given back, and not by others',
    async run(open) {
      const [one, two] = [open(), open()]
      const turn = (owner: string, untilAt: number) => ({ owner, untilAt })
      equal(await one.takeTurn('k', turn('one', 2_000), 1_000), undefined, 'first')
      equal(await two.takeTurn('k', turn('two', 3_000), 1_500), turn('one', 2_000), 'second')
      equal(await two.takeTurn('other', turn('two', 3_000), 1_500), undefined, 'another operation')
      equal(await one.takeTurn('k', turn('one', 4_000), 1_900), undefined, 'prolonged')
      equal(await two.takeTurn('k', turn('two', 5_000), 2_500), turn('one', 4_000), 'after the first end')
      equal(await two.takeTurn('k', turn('two', 6_000), 4_000), undefined, 'after the second end')
      await one.endTurn('k', 'one')
      equal(await one.takeTurn('k', turn('one', 7_000), 4_500), turn('two', 6_000), 'given back by a former owner')
      await two.endTurn('k', 'two')
      equal(await one.takeTurn('k', turn('one', 7_000), 4_500), undefined, 'given back')
      await one.endTurn('k', 'one')
      await two.endTurn('other', 'two')
    },
  },
  {
    name: 'of many that ask for a turn at the same moment exactly one gets it',
    async run(open) {
      const owners = Array.from({ length: 8 }, (_, index) => `owner-${index}`)
      const asked = owners.map((owner) => open().takeTurn('race', { owner, untilAt: 2_000 }, 1_000))
      const answers = await Promise.all(asked)
      equal(answers.filter((found) => found === undefined).length, 1, 'winners')
      for (const owner of owners) await open().endTurn('race', owner)
    },
  },
]
