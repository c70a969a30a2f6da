/**
 * `npm run mutants`: breaks our own protocol in one place at a time (scripts/mutants), and sees that the test which is
 * named for it fails. The same tests must pass unbroken, and the text to be broken must be there exactly once.
 *
 * `--only IDS` some of them, with commas between (a part of an id that is no id stands for all that have it) · `--third N`
 * a third of them, N = 0, 1 or 2 · `--workers N` at once, 1 or 2, default 2.
 * The last line is `mutants: 41/41 killed`; the exit code is 1 when one lives, is stale, or its test fails by itself.
 */
import { parseArgs } from 'node:util'
import { startPostgres } from '../src/testing/services/postgres.ts'
import { mutants as all } from './mutants/all.ts'
import type { Mutant } from './mutants/mutant.ts'
import { runTests } from './mutants/run-tests.ts'
import { thirdOf } from './mutants/thirds.ts'
import { Tree } from './mutants/tree.ts'

const MUTANT_MS_MAX = 60_000
const UNBROKEN_MS_MAX = 180_000

const { values: asked } = parseArgs({
  options: { only: { type: 'string' }, third: { type: 'string' }, workers: { type: 'string', default: '2' } },
})
const wanted = (asked.only ?? '').split(',')
const known = new Set(all.map(({ id }) => id))
if (asked.third !== undefined && !/^[012]$/.test(asked.third)) {
  console.error('--third takes 0, 1 or 2')
  process.exit(2)
}
const within = asked.third === undefined ? all : thirdOf(all, Number(asked.third))
const chosen = within.filter(({ id }) => wanted.some((one) => (known.has(one) ? id === one : id.includes(one))))
if (chosen.length === 0 || known.size !== all.length) {
  console.error(`no such mutant, or two of one id; known: ${all.map(({ id }) => id).join(', ')}`)
  process.exit(2)
}
const workers = asked.workers === '1' ? 1 : 2

const began = performance.now()
const postgres = await startPostgres({ forgetful: true })
const trees = Array.from({ length: workers }, () => new Tree(process.cwd()))
let killed = 0
try {
  const unproven = await checkUnbroken()
  await inTurn([...chosen.entries()], async ([index, mutant], tree) => {
    const started = performance.now()
    const result = unproven.get(mutant) ?? (await judge(mutant, tree))
    if (result.killed) killed += 1
    const seconds = ((performance.now() - started) / 1000).toFixed(1)
    const place = `${String(index + 1).padStart(3)}/${chosen.length}`
    console.log(`${result.killed ? 'killed' : 'LIVES '} ${place} ${mutant.id.padEnd(50)} ${seconds} s`)
    if (!result.killed) console.log(`       ${mutant.file}: ${result.why}; ${mutant.test.file} "${mutant.test.name}"`)
  })
} finally {
  for (const tree of trees) tree.remove()
  await postgres.stop()
}
console.log(`in ${Math.round((performance.now() - began) / 1000)} s`)
console.log(`mutants: ${killed}/${chosen.length} killed`)
if (killed !== chosen.length) process.exitCode = 1

interface Judged {
  readonly killed: boolean
  readonly why: string
}

/** Runs what is named for each mutant on the sources as they are, once a file. */
async function checkUnbroken(): Promise<ReadonlyMap<Mutant, Judged>> {
  const unproven = new Map<Mutant, Judged>()
  const files = [...new Set(chosen.map(({ test }) => test.file))]
  await inTurn(files, async (file, tree) => {
    const mutants = chosen.filter(({ test }) => test.file === file)
    const names = mutants.map(({ test }) => test.name)
    const bounds = { postgresUrl: postgres.url, boundMs: UNBROKEN_MS_MAX, bail: false }
    const { passed, failed, error } = await runTests(tree.root, file, names, bounds)
    for (const mutant of mutants) {
      const { name } = mutant.test
      const own = failed.find((test) => test.includes(name))
      if (own !== undefined) unproven.set(mutant, { killed: false, why: `its test fails unbroken: ${own}` })
      else if (!passed.some((test) => test.includes(name))) {
        unproven.set(mutant, {
          killed: false,
          why: `its test did not run unbroken (${error ?? 'no test has the name'})`,
        })
      }
    }
    console.log(`unbroken: ${passed.length} passed, ${failed.length} failed, ${file}`)
  })
  return unproven
}

async function judge(mutant: Mutant, tree: Tree): Promise<Judged> {
  try {
    tree.apply(mutant)
  } catch (error) {
    return { killed: false, why: error instanceof Error ? error.message : String(error) }
  }
  try {
    const { file, name } = mutant.test
    const bounds = { postgresUrl: postgres.url, boundMs: MUTANT_MS_MAX, bail: true }
    const { failed, error } = await runTests(tree.root, file, [name], bounds)
    return { killed: failed.length > 0, why: error ?? 'its test passes' }
  } finally {
    tree.restore(mutant)
  }
}

/** Each item once, in as many lines as there are trees. */
async function inTurn<T>(items: readonly T[], act: (item: T, tree: Tree) => Promise<void>): Promise<void> {
  const queue = [...items]
  await Promise.all(
    trees.map(async (tree) => {
      for (let item = queue.shift(); item !== undefined; item = queue.shift()) await act(item, tree)
    }),
  )
}
