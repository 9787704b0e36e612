// npm `centrifuge`: the JavaScript client of Centrifugo; it reconnects and recovers by itself.
import {createRequire} from 'node:module'

const [url, total, modules, channel, tokens] = process.argv.slice(2)
const require = createRequire(`${modules}/package.json`)
const {Centrifuge} = require('centrifuge')
const address = url.replace(/^ws/, 'http')
const transport = address.split('/').pop()
// With an address of tokens, the connection and the subscription each have one that ends in some seconds.
const ask = (what) => (tokens ? {getToken: async () => (await fetch(tokens + what)).text()} : {})
const client = new Centrifuge(transport === 'ws' ? url : [{transport, endpoint: address}], {
  // Node has no WebSocket of its own before version 22, and no EventSource.
  websocket: require('ws'),
  eventsource: require('eventsource').EventSource,
  emulationEndpoint: address.replace(/[^/]*$/, 'emulation'),
  ...ask('connection'),
  minReconnectDelay: 100,
  maxReconnectDelay: 500
})
const subscription = client.newSubscription(channel, {
  ...ask('subscription'),
  minResubscribeDelay: 100,
  since: {offset: 0, epoch: ''}
})
subscription.on('subscribed', ({recovered, streamPosition}) => {
  if (recovered) return
  console.log('not recovered:', JSON.stringify(streamPosition))
  process.exit(1)
})
subscription.on('publication', ({data: {n}}) => {
  console.log(n)
  if (n === total - 1) setTimeout(() => process.exit(0), 2500)
})
subscription.on('error', ({error}) => console.log('subscription:', error.code, error.message))
subscription.on('unsubscribed', ({code, reason}) => console.log('unsubscribed:', code, reason))
client.on('disconnected', ({code, reason}) => console.log('disconnected:', code, reason))
subscription.subscribe()
client.connect()
