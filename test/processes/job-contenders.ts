/** Sixteen contenders for each of some operations that nobody holds; prints what each was answered. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { postgres } from '../../src/stores/postgres/index.ts'

const [, , connectionString, ...ids] = process.argv
const pool = new pg.Pool({ connectionString, max: 12, pipeline: true })
const { jobs } = postgres(pool)
const answers: Record<string, string[]> = {}
await Promise.all(
  Array.from({ length: 16 }, async () => {
    for (const id of ids) {
      const job = { id, fence: 0n, token: randomUUID(), leaseMs: 60_000, claimsMax: 3 }
      const { kind } = await jobs.takeOver(job)
      answers[id] = [...(answers[id] ?? []), kind]
    }
  }),
)
console.log(JSON.stringify(answers))
await pool.end()
