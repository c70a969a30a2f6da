/**
 * A process that sends one operation, or resumes what an earlier one left: `node client-sender.ts send|resume`.
 * Prints one line of JSON at its end.
 */
import { createOperation, resumeOperations } from '../../src/client/index.ts'
import { fileStorage } from '../../src/client/storages/file.ts'

const { FOLDER = '', SHOP = '', CUSTOMER = '' } = process.env
const storage = fileStorage({ folder: FOLDER })
if (process.argv[2] === 'send') {
  const send = createOperation({ url: `${SHOP}/orders`, body: { customer: CUSTOMER, cents: 4200 }, storage })
  const { state } = await send()
  console.log(JSON.stringify({ state }))
} else {
  const { results, failed, unreadable } = await resumeOperations({ storage, origins: [SHOP] })
  const told = results.map(({ result }) => ({
    state: result.state,
    attempts: result.attempts,
    ...(result.state === 'completed' ? { replayed: result.replayed } : {}),
    ...(result.state === 'gaveUp' ? { reason: result.reason } : {}),
  }))
  console.log(JSON.stringify({ told, failed: failed.length, unreadable, left: (await storage.entries()).length }))
}
