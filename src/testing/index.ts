/**
 * The door `effectively-once/testing`: the contracts' conformance suites for whoever writes a store or a broker adapter,
 * the in-memory reference of both, and private servers for tests.
 *
 * @module
 */

export {
  type BrokerCase,
  type BrokerHarness,
  type BrokerSetup,
  brokerConformance,
} from '../broker/conformance/index.ts'
export { type MemoryBroker, type MemoryBrokerOptions, memoryBroker } from '../brokers/memory/index.ts'
export {
  type DrillOptions,
  type DrillProgress,
  type DrillResult,
  drill,
  drillToken,
  replayDrill,
} from '../drill/drill.ts'
export {
  type Count,
  type Delivery,
  type DrillFile,
  type DrillPlace,
  type DrillProvider,
  type DrillWorld,
  defineDrill,
  type JobDelivery,
  type MessageDelivery,
  type RequestDelivery,
  type Started,
} from '../drill/file/format.ts'
export { DrillRefused } from '../drill/place/refuse.ts'
export type { WindowResult } from '../drill/run/campaign.ts'
export type { Verdict } from '../drill/run/judge.ts'
export type { Capabilities, ConformanceCase } from '../shared/conformance.ts'
export type { OpenStore, StoreHarness } from '../store/conformance/harness.ts'
export { inboxCases } from '../store/conformance/inbox.cases.ts'
export { inboxWaitingCases } from '../store/conformance/inbox-waiting.cases.ts'
export { jobCases } from '../store/conformance/job.cases.ts'
export { operationCases } from '../store/conformance/operation.cases.ts'
export { outboxCases } from '../store/conformance/outbox.cases.ts'
export { progressCases } from '../store/conformance/progress.cases.ts'
export { retentionCases } from '../store/conformance/retention.cases.ts'
export type { Store } from '../store/store.ts'
export { type MemoryStore, type MemoryTx, memory } from '../stores/memory/index.ts'
export {
  type FakeProvider,
  type FakeProviderOptions,
  fakeProvider,
  type HeldFilter,
  type HeldRequest,
  PROVIDER_FAULTS,
  type ProviderEffect,
  type ProviderFault,
  type ProviderFaultKind,
  type ProviderKeys,
  type ProviderLookUp,
  type ProviderRequest,
  type ProviderState,
  type RemoteProvider,
  remoteProvider,
  type SeededFaults,
  type WaitOptions,
} from './provider/index.ts'
export {
  freePort,
  type PostgresService,
  type PostgresServiceOptions,
  startPostgres,
} from './services/postgres.ts'
export {
  obtainRabbit,
  type RabbitObtained,
  type RabbitService,
  type RabbitServiceOptions,
  startRabbit,
} from './services/rabbitmq.ts'
export { type ArmedFault, type HeldBytes, type TcpProxy, type TcpProxyOptions, tcpProxy } from './services/tcp-proxy.ts'
