/**
 * Fake provider: see ./fake-provider.ts.
 *
 * @module
 */

export type { ProviderEffect, ProviderRequest } from './book.ts'
export { type RemoteProvider, remoteProvider } from './control.ts'
export { type FakeProvider, type FakeProviderOptions, fakeProvider } from './fake-provider.ts'
export { PROVIDER_FAULTS, type ProviderFault, type ProviderFaultKind, type SeededFaults } from './fault.ts'
export type { ProviderLookUp } from './look-up.ts'
export type { ProviderKeys } from './mode.ts'
export type { HeldFilter, HeldRequest, ProviderState } from './state.ts'
export type { WaitOptions } from './watch.ts'
