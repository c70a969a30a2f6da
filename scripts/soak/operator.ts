/** Operator: puts the job that kills its process back whenever it was set aside, a few times, and writes down what it was told. */
import type pg from 'pg'
import type { Once } from '../../src/index.ts'
import { pause } from '../../src/shared/waiting.ts'
import type { Acted, History } from './history.ts'
import { DEADLY, SCOPE } from './names.ts'

const LOOK_MS = 1_000

/** Resolves when it has acted so often and been told so, or nothing is to be done any more. */
export async function operate(
  once: Once<pg.PoolClient>,
  pool: pg.Pool,
  history: History,
  { acts, stopped }: { readonly acts: number; readonly stopped: () => boolean },
): Promise<void> {
  const operation = { scope: SCOPE, key: DEADLY.key }
  for (let done = 0, number = 1; done < acts && !stopped(); await pause(LOOK_MS)) {
    if (!(await isParked(pool))) continue
    const reason = `the cause is mended, attempt ${number}`
    number += 1
    const told = await once.redrive(operation, { actor: 'soak', reason }).then(
      (answer): Acted['told'] => (answer === 'redriven' ? 'done' : 'refused'),
      (): Acted['told'] => 'open',
    )
    history.add({ kind: 'acted', at: performance.now(), reason, told })
    if (told === 'done') done += 1
  }
}

async function isParked(pool: pg.Pool): Promise<boolean> {
  try {
    const text = `select from effectively_once.operation where kind = $1 and state = 'parked'`
    return (await pool.query(text, [DEADLY.kind])).rowCount === 1
  } catch {
    // The database is away.
    return false
  }
}
