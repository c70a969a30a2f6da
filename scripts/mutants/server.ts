import type { TestProject } from 'vitest/node'

/** Hands on the server that the runner has started; tests that need RabbitMQ are not for mutants. */
export default function setup(project: TestProject): void {
  const url = process.env['MUTANTS_POSTGRES_URL']
  if (url === undefined) throw new Error('started by npm run mutants only')
  project.provide('postgresUrl', url)
  project.provide('amqpUrl', null)
}
