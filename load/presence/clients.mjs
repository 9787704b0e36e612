// Clients of npm `centrifuge`, each with its own list of who is on the channel, in one process.
// A line of standard input is a command: {"come": [numbers]}, {"go": [numbers]} or {"look": true}. A look is
// answered with a line. The process ends with its standard input.
import {createRequire} from 'node:module'
import {createInterface} from 'node:readline'

const [url, modules, channel] = process.argv.slice(2)
const require = createRequire(`${modules}/package.json`)
const {Centrifuge} = require('centrifuge')
const ASK_AGAIN_MS = 500
const guests = new Map()
const counts = {joins: 0, leaves: 0, asked: 0, refused: 0, cuts: 0}

class Guest {
  constructor() {
    this.id = ''
    this.list = null
    // The joins and leaves since the question that has no answer yet.
    this.since = null
    // Node has no WebSocket of its own before version 22.
    this.client = new Centrifuge(url, {websocket: require('ws')})
    this.client.on('connected', ({client}) => { this.id = client })
    this.client.on('connecting', () => this.away())
    this.client.on('disconnected', () => this.away())
    this.subscription = this.client.newSubscription(channel, {joinLeave: true})
    this.subscription.on('subscribed', () => this.ask())
    this.subscription.on('unsubscribed', ({code, reason}) => console.error('unsubscribed:', code, reason))
    this.subscription.on('join', ({info}) => this.hear(info.client, true))
    this.subscription.on('leave', ({info}) => this.hear(info.client, false))
    this.subscription.subscribe()
    this.client.connect()
  }

  away() {
    if (this.id) counts.cuts += 1
    this.id = ''
  }

  // The answer was read at some time after the question. What was told since then is applied to it.
  async ask() {
    const since = this.since = []
    counts.asked += 1
    try {
      const {clients} = await this.subscription.presence()
      if (this.since !== since) return
      this.list = new Set(Object.keys(clients))
      this.since = null
      for (const [client, joined] of since) this.apply(client, joined)
    } catch (error) {
      counts.refused += 1
      if (this.since === since && this.id) setTimeout(() => this.since === since && this.ask(), ASK_AGAIN_MS)
    }
  }

  hear(client, joined) {
    counts[joined ? 'joins' : 'leaves'] += 1
    if (this.since) this.since.push([client, joined])
    else this.apply(client, joined)
  }

  apply(client, joined) {
    if (joined) this.list.add(client)
    else this.list.delete(client)
  }
}

function look() {
  const shown = [...guests].map(([number, {id, list}]) => ({number, client: id, listed: list && [...list]}))
  return JSON.stringify({counts, shown})
}

createInterface({input: process.stdin}).on('line', (line) => {
  const {come = [], go = [], look: looked} = JSON.parse(line)
  for (const number of come) guests.set(number, new Guest())
  for (const number of go) {
    const {client} = guests.get(number)
    guests.delete(number)
    client.disconnect()
  }
  if (looked) console.log(look())
}).on('close', () => process.exit(0))
