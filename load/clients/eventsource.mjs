// npm `eventsource`: the browser's interface in Node; it reconnects by itself.
import {createRequire} from 'node:module'

const [url, total, modules] = process.argv.slice(2)
const {EventSource} = createRequire(`${modules}/package.json`)('eventsource')
const source = new EventSource(url)
source.onmessage = (event) => {
  const {n} = JSON.parse(event.data).data
  console.log(n)
  // Whatever comes twice would come right after.
  if (n === total - 1) setTimeout(() => process.exit(0), 2500)
}
