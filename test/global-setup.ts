import { readFile } from 'node:fs/promises'
import type { TestProject } from 'vitest/node'
import { startPostgres } from '../src/testing/services/postgres.ts'
import { obtainRabbit } from '../src/testing/services/rabbitmq.ts'
import { miss15 } from './services/postgres-15.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** Connection string of the private PostgreSQL of this run. */
    postgresUrl: string
    /** Folder with the binaries of that server; undefined = those from npm. */
    postgresBinaries?: string
    /** AMQP URL of this run's RabbitMQ; null when none could be had, then tests that need one are skipped loudly. */
    amqpUrl: string | null
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const binaries = project.config.provide.postgresBinaries
  miss15()
  const [postgres, rabbit] = await Promise.all([startPostgres({ binaries }), rabbitWhenNeeded(project)])
  project.provide('postgresUrl', postgres.url)
  project.provide('amqpUrl', rabbit?.url ?? null)
  return async () => {
    await Promise.all([postgres.stop(), rabbit?.stop()])
  }
}

/** Starts RabbitMQ only when a selected test file speaks of it: a node costs seconds of CPU. */
async function rabbitWhenNeeded(project: TestProject): Promise<{ url: string; stop(): Promise<void> } | undefined> {
  const { vitest } = project
  const filters = 'filenamePattern' in vitest && Array.isArray(vitest.filenamePattern) ? vitest.filenamePattern : []
  const all = await vitest.globTestSpecifications(filters.map(String))
  const selected = all.filter((specification) => specification.project.name === project.name)
  const texts = await Promise.all(selected.map((specification) => readFile(specification.moduleId, 'utf8')))
  if (!texts.some((text) => /amqp|rabbit/i.test(text))) return undefined
  const rabbit = await obtainRabbit({ install: true })
  if ('url' in rabbit) {
    console.log(`tests use ${rabbit.how}`)
    return rabbit
  }
  if (process.env['CI'] !== undefined && process.env['CI'] !== '' && process.env['CI'] !== 'false') {
    throw new Error(`tests need RabbitMQ, and in CI nothing is skipped: ${rabbit.reason}`)
  }
  console.warn(`\n*** SKIPPED: every test that needs RabbitMQ. ${rabbit.reason} ***\n`)
  return undefined
}
