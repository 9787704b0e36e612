// npm `eventsource-client`: an async iterator over events; it reconnects by itself.
import {createRequire} from 'node:module'

const [url, total, modules] = process.argv.slice(2)
const {createEventSource} = createRequire(`${modules}/package.json`)('eventsource-client')
for await (const {data, event} of createEventSource(url)) {
  if (event !== undefined && event !== 'message') continue
  const {n} = JSON.parse(data).data
  console.log(n)
  if (n === total - 1) setTimeout(() => process.exit(0), 2500)
}
