/** Names that the processes of the soak share. */
export const EXCHANGE = 'soak'
/** Queue, consumer and table of what is applied. */
export const PROJECTION = 'projection'
/** Queue of everything that is published, for the record. */
export const RECORD = 'record'
export const TOPIC = 'order.created.v1'
export const SCOPE: readonly string[] = ['soak']
/** How many ordering keys orders have. */
export const KEYS_OF_ORDERS = 20

/** The job whose handler kills its process, and after how many claims it is to be set aside. */
export const DEADLY = { kind: 'deadly', key: 'deadly', claimsMax: 3 } as const
