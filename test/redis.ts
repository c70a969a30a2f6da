/** Redis for test files: whether one can be had on this machine. */
import { findRedis } from '../src/testing/services/redis.ts'

/** Use with `describe.skipIf(!canStartRedis)`. Never false in CI. */
export const canStartRedis: boolean = await (async () => {
  if ((await findRedis()) !== undefined) return true
  if (process.env['CI'] !== undefined) throw new Error('tests need redis-server, and in CI nothing is skipped')
  console.warn('*** SKIPPED: tests of BullMQ. No redis-server is installed (apt-get install redis-server) ***')
  return false
})()
