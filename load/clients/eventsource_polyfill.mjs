// npm `event-source-polyfill`: where a browser has no EventSource, or to send headers. It brings its cursor as
// `lastEventId` in the query, beside the start of the first URL.
import {createRequire} from 'node:module'

const [url, total, modules] = process.argv.slice(2)
const {EventSourcePolyfill} = createRequire(`${modules}/package.json`)('event-source-polyfill')
const source = new EventSourcePolyfill(url)
source.onmessage = (event) => {
  const {n} = JSON.parse(event.data).data
  console.log(n)
  // Whatever comes twice would come right after.
  if (n === total - 1) setTimeout(() => process.exit(0), 2500)
}
