// npm `centrifuge`: who is on a channel, as the client of Centrifugo is told.
// node centrifuge_presence.mjs MODULES TRANSPORT ENDPOINT CHANNEL WHAT
import {createRequire} from 'node:module'

const [modules, transport, endpoint, channel, what] = process.argv.slice(2)
const require = createRequire(`${modules}/package.json`)
const {Centrifuge} = require('centrifuge')

function connected() {
  const client = new Centrifuge([{transport, endpoint}], {
    // Node has no WebSocket of its own before version 22, and no EventSource.
    websocket: require('ws'),
    eventsource: require('eventsource').EventSource,
    emulationEndpoint: endpoint.replace(/^ws/, 'http').replace(/(\/v1\/ws).*/, '$1/emulation')
  })
  client.connect()
  return client
}

async function seen(of, ...channel) {
  const {numClients, numUsers} = await of.presenceStats(...channel)
  const {clients} = await of.presence(...channel)
  return [Object.keys(clients).length, numClients, numUsers]
}

// Two clients without a user: they are two clients and one user.
async function together() {
  const subscriptions = [connected(), connected()].map(client => client.newSubscription(channel))
  for (const subscription of subscriptions) {
    subscription.subscribe()
    await subscription.ready()
  }
  console.log(JSON.stringify(await seen(subscriptions[0])))
}

// One client that comes and goes ten times, and asks right after its last subscribe; then it has left.
async function comesAndGoes() {
  const client = connected()
  await client.ready()
  const subscription = client.newSubscription(channel)
  for (let times = 0; times < 10; times++) {
    subscription.subscribe()
    subscription.unsubscribe()
  }
  subscription.subscribe()
  console.log(JSON.stringify(await seen(subscription)))
  subscription.unsubscribe()
  let left
  do left = JSON.stringify(await seen(client, channel))
  while (left !== '[0,0,0]')
  console.log(left)
}

await {together, comesAndGoes}[what]()
process.exit(0)
