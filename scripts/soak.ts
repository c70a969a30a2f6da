/**
 * `npm run soak`: real processes under load (APIs, workers, relays, consumers, purges; some with a wrong clock) and
 * PostgreSQL itself are killed at random or stopped beyond their leases, and one job kills whoever works on it; afterwards
 * what every caller and operator was told is compared with what is there (scripts/soak).
 *
 * `--kills N` default 300 · `--seed N` default at random; the same seed draws the same operations and disturbances, their
 * moments are the machine's · `--mutant ID` breaks the processes as `npm run mutants` does: then violations are due.
 * The last line is `soak: 300 kills, 0 violations, seed 123`; the exit code is 1 with any violation.
 */
import { randomInt } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import amqp from 'amqplib'
import pg from 'pg'
import { rolldown } from 'rolldown'
import { ORDERING_KEY_HEADER } from '../src/brokers/rabbitmq/index.ts'
import { createOnce } from '../src/index.ts'
import { pause } from '../src/shared/waiting.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { fakeProvider } from '../src/testing/provider/index.ts'
import { freePort, startPostgres } from '../src/testing/services/postgres.ts'
import { startRabbit } from '../src/testing/services/rabbitmq.ts'
import { seededRandom } from '../test/torture/writers.ts'
import { mutants } from './mutants/all.ts'
import { Tree } from './mutants/tree.ts'
import { Callers } from './soak/callers.ts'
import { check } from './soak/check.ts'
import { checkKept } from './soak/check-kept.ts'
import { clockOf, factsOf, keptOf, leftOf } from './soak/facts.ts'
import { History } from './soak/history.ts'
import { DEADLY, EXCHANGE, KEYS_OF_ORDERS, PROJECTION, RECORD, SCOPE } from './soak/names.ts'
import { operate } from './soak/operator.ts'
import { killBackend, killServer, revive, Slot } from './soak/processes.ts'

const CALLERS = 6
/** Mean pause between disturbances, milliseconds. */
const BETWEEN_MS = 800
/** How long everything may take to settle after the last disturbance, milliseconds. */
const SETTLE_MS = 60_000
const FOLDER = '.tmp/soak'
/** How often the operator puts back what kills its process. */
const ACTS = 3
/** Clocks of the processes, in turn, milliseconds from the right one. */
const CLOCKS_AHEAD_MS = [0, 3_600_000, -3_600_000]

const { values: asked } = parseArgs({
  options: { kills: { type: 'string', default: '300' }, seed: { type: 'string' }, mutant: { type: 'string' } },
})
const kills = Number(asked.kills)
const seed = Number(asked.seed ?? randomInt(1, 1_000_000))
if (!Number.isInteger(kills) || kills < 1 || kills > 100_000 || !Number.isSafeInteger(seed)) {
  console.error('--kills takes 1 to 100000, --seed a whole number')
  process.exit(2)
}
const again = `npm run soak -- --kills ${kills} --seed ${seed}${asked.mutant === undefined ? '' : ` --mutant ${asked.mutant}`}`
console.log(`seed ${seed}; to repeat: ${again}`)

mkdirSync(FOLDER, { recursive: true })
const script = await bundleChild(asked.mutant)
const historyFile = join(FOLDER, `history-${seed}.jsonl`)
const history = new History(historyFile)
const [server, rabbit, provider] = await Promise.all([
  startPostgres(),
  startRabbit(),
  fakeProvider({
    faults: { seed, rate: 0.1, perKeyMax: 2, kinds: ['answerLost', 'answerCut', 'connectionLost', 'unavailable'] },
  }),
])
const pool = new pg.Pool({ connectionString: server.url, max: 4, connectionTimeoutMillis: 5_000 })
pool.on('error', () => {})
const slots: Slot[] = []
let violations: readonly string[] = []
let done = 0
let failure: unknown
try {
  violations = await soak()
} catch (error) {
  // Told at once: what follows may wait for what has failed.
  failure = error
  console.error(error)
} finally {
  for (const slot of slots) slot.end()
  await pool.end()
  await history.close()
  await Promise.all([server.stop(), rabbit.stop(), provider.stop()])
}
for (const guarantee of new Set(violations.map((one) => one.split(':')[0]))) {
  console.log(`${violations.filter((one) => one.startsWith(`${guarantee}:`)).length} times ${guarantee}`)
}
for (const violation of violations.slice(0, 50)) console.log(`VIOLATION ${violation}`)
if (violations.length > 0) console.log(`history: ${historyFile}; to repeat: ${again}`)
console.log(`soak: ${done} kills, ${violations.length} violations, seed ${seed}`)
// Nothing of what was started may keep a finished run alive.
process.exit(violations.length > 0 || done < kills || failure !== undefined ? 1 : 0)

async function soak(): Promise<readonly string[]> {
  const once = createOnce({ store: postgres(pool) })
  await once.migrate()
  const from = await clockOf(pool)
  await pool.query(`
    create table orders (id int generated always as identity, ref text not null, payload text not null);
    create table bookings (id int generated always as identity, ref text not null, charge text not null);
    create table projection (seq bigint generated always as identity, key text not null, n int not null, id text not null);
    create table counter (key text primary key, n int not null)`)
  await pool.query(`insert into counter select 'k' || g, 0 from generate_series(0, $1::int - 1) g`, [KEYS_OF_ORDERS])
  const { arrivals, close } = await record()
  const at = JSON.stringify({ url: provider.url, profile: provider.profile })
  const env = { DATABASE_URL: server.url, AMQP_URL: rabbit.url, PROVIDER: at }
  const ports = [await freePort(), await freePort()]
  const add = (role: string, more: Readonly<Record<string, string>> = {}): void => {
    const ahead = String(CLOCKS_AHEAD_MS[slots.length % CLOCKS_AHEAD_MS.length])
    slots.push(new Slot(role, script, { ...env, ...more, ROLE: role, CLOCK_AHEAD_MS: ahead }))
  }
  for (const port of ports) add('api', { PORT: String(port) })
  for (const role of ['worker', 'worker', 'relay', 'relay', 'consumer', 'consumer', 'purge']) add(role)
  const deadly = once.define(DEADLY.kind, { claimsMax: DEADLY.claimsMax, handler: () => {} })
  await deadly.start({ scope: SCOPE, key: DEADLY.key, payload: null })
  let giveUpAt = Number.POSITIVE_INFINITY
  let stopped = false
  const callers = new Callers({ ports, history, random: seededRandom(seed), giveUpAt: () => giveUpAt })
  const load = Promise.all(Array.from({ length: CALLERS }, (_, n) => callers.run(`c${n}`, () => stopped)))
  const operating = operate(once, pool, history, { acts: ACTS, stopped: () => stopped })
  await pause(2_000)
  await disturb()
  stopped = true
  await operating
  giveUpAt = performance.now() + SETTLE_MS
  await load
  console.log(`${callers.keys.length} operations were asked for; everybody is asked again`)
  // Everybody asks once more, as after a long while: nothing may change.
  const repeats = [...callers.keys]
  await Promise.all(
    Array.from({ length: CALLERS }, async () => {
      for (let one = repeats.pop(); one !== undefined; one = repeats.pop()) {
        await callers.ask(one.key, one.route, one.payload)
      }
    }),
  )
  for (;;) {
    const left = await leftOf(pool)
    if (left.length === 0 || performance.now() > giveUpAt) break
    await pause(500)
  }
  if ((await leftOf(pool)).length > 0) {
    const columns = ['name', 'messages_ready', 'messages_unacknowledged', 'consumers']
    console.log(await rabbit.ctl('list_queues', ...columns))
  }
  // What is on its way from the broker.
  await pause(500)
  const facts = await factsOf(pool, provider, arrivals)
  const kept = await keptOf(pool, provider, history.entries, from)
  await close()
  return [...check(history.entries, facts), ...checkKept(history.entries, kept)]
}

/** Kills and stops, one after the other. */
async function disturb(): Promise<void> {
  const random = seededRandom(seed + 1)
  const frozen: Promise<void>[] = []
  while (done < kills) {
    await pause(BETWEEN_MS * (0.3 + random() * 1.4))
    await revive(server)
    const draw = random()
    const slot = slots[Math.floor(random() * slots.length)] as Slot
    let what: string
    if (draw < 0.06) {
      what = 'SIGKILL of a backend of PostgreSQL'
      killBackend(server, random)
    } else if (draw < 0.09) {
      what = 'SIGKILL of PostgreSQL'
      await killServer(server)
    } else {
      if (!slot.isUp || slot.stopped) continue
      what = draw < 0.3 ? `SIGSTOP of a ${slot.name} beyond its lease` : `SIGKILL of a ${slot.name}`
      if (draw < 0.3) frozen.push(slot.freeze())
      else slot.kill()
    }
    done += 1
    history.add({ kind: 'disturbed', at: performance.now(), what })
    if (done % 25 === 0) console.log(`${done}/${kills} kills, ${Math.round(performance.now() / 1000)} s`)
  }
  await Promise.all(frozen)
  await revive(server)
}

/** Takes down everything that is published, in the order in which the broker has it. */
async function record() {
  const connection = await amqp.connect(rabbit.url)
  const channel = await connection.createChannel()
  await channel.assertExchange(EXCHANGE, 'topic', { durable: true })
  await channel.assertQueue(PROJECTION, {
    durable: true,
    // Two consumers of one queue keep no order between them.
    arguments: { 'x-queue-type': 'quorum', 'x-single-active-consumer': true },
  })
  await channel.assertQueue(RECORD, { durable: true })
  await channel.bindQueue(PROJECTION, EXCHANGE, 'order.#')
  await channel.bindQueue(RECORD, EXCHANGE, '#')
  const arrivals: { key: string; n: number }[] = []
  await channel.consume(
    RECORD,
    (message) => {
      if (message?.properties.headers?.[ORDERING_KEY_HEADER] === undefined) return
      arrivals.push(JSON.parse(message.content.toString('utf8')) as { key: string; n: number })
    },
    { noAck: true },
  )
  return { arrivals, close: () => connection.close() }
}

/** The processes start from one file, which costs them a tenth of what compiling at each start would. */
async function bundleChild(mutant: string | undefined): Promise<string> {
  const broken = mutants.find(({ id }) => id === mutant)
  if (mutant !== undefined && broken?.file.startsWith('src/') !== true) {
    console.error(
      `--mutant takes one of src: ${mutants
        .filter(({ file }) => file.startsWith('src/'))
        .map(({ id }) => id)
        .join(', ')}`,
    )
    process.exit(2)
  }
  const tree = broken === undefined ? undefined : new Tree(process.cwd())
  try {
    if (broken !== undefined) tree?.apply(broken)
    const build = await rolldown({
      input: join(tree?.root ?? process.cwd(), 'scripts/soak/child.ts'),
      external: (id) => !/^[./]/.test(id),
      platform: 'node',
    })
    // As deep as the sources that find files beside them by their own address.
    const file = `${FOLDER}/${process.pid}/child.mjs`
    await build.write({ file, format: 'esm', codeSplitting: false, sourcemap: 'inline' })
    await build.close()
    return file
  } finally {
    tree?.remove()
  }
}
