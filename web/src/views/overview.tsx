/** Overview: can it be trusted, what is wrong, what each fix is worth, where the step goes. */
import type { JSX } from "preact"
import { overview } from "../data/state"
import type { Overview as OverviewData } from "../data/types"
import { Loaded } from "../components/parts"
import "./overview.css"
import { CheckedList } from "./pieces/checked"
import { FindingTable } from "./pieces/finding_table"
import { GpuTiles } from "./pieces/gpu_tiles"
import { HeadlineBlock } from "./pieces/headline"
import { OneStepChart } from "./pieces/one_step"
import { StepTimeBlock } from "./pieces/step_time"
import { TrustStrip } from "./pieces/trust"
import { WaterfallChart } from "./pieces/waterfall"

export function Overview(): JSX.Element {
  return (
    <Loaded resource={overview.value} what="overview">
      {(value) => <OverviewPage value={value} />}
    </Loaded>
  )
}

function OverviewPage(props: { readonly value: OverviewData }): JSX.Element {
  const { value } = props
  return (
    <div class="overview">
      <TrustStrip trust={value.trust} leftOut={value.left_out} />
      {value.pending !== null ? <BeforeDiagnosis value={value} pending={value.pending} /> : value.findings.length > 0 ? <WithFindings value={value} /> : <WithoutFindings value={value} />}
    </div>
  )
}

function WithFindings(props: { readonly value: OverviewData }): JSX.Element {
  const { value } = props
  return (
    <>
      <div class="top-half">
        <HeadlineBlock headline={value.headline} />
        <WaterfallChart waterfall={value.waterfall} />
      </div>
      <div class="bottom-half">
        <div>
          <FindingTable findings={value.findings} />
          {value.one_step && <OneStepChart step={value.one_step} />}
        </div>
        <aside aria-label="Step time and checks">
          <GpuTiles tiles={value.gpu} />
          {value.step_time.steps.length > 0 && <StepTimeBlock stepTime={value.step_time} />}
          <CheckedList checked={value.checked} />
          <NextCommands commands={value.next} />
        </aside>
      </div>
    </>
  )
}

/** What can be read while the findings are worked out. */
function BeforeDiagnosis(props: { readonly value: OverviewData; readonly pending: string }): JSX.Element {
  const { value, pending } = props
  return (
    <div class="bottom-half without-findings">
      <div>
        <HeadlineBlock headline={value.headline} />
        <div class="pending" role="status">
          <progress aria-label="Looking for problems" />
          <p>{pending}</p>
        </div>
        {value.one_step && <OneStepChart step={value.one_step} />}
      </div>
      <aside aria-label="Step time">
        <GpuTiles tiles={value.gpu} />
        {value.step_time.steps.length > 0 && <StepTimeBlock stepTime={value.step_time} />}
      </aside>
    </div>
  )
}

/** Where nothing is to be fixed, what was checked takes the room of the findings. */
function WithoutFindings(props: { readonly value: OverviewData }): JSX.Element {
  const { value } = props
  return (
    <div class="bottom-half without-findings">
      <div>
        <HeadlineBlock headline={value.headline} />
        {value.one_step && <OneStepChart step={value.one_step} />}
        <CheckedList checked={value.checked} />
      </div>
      <aside aria-label="Step time">
        <GpuTiles tiles={value.gpu} />
        {value.step_time.steps.length > 0 && <StepTimeBlock stepTime={value.step_time} />}
        <NextCommands commands={value.next} />
      </aside>
    </div>
  )
}

function NextCommands(props: { readonly commands: readonly string[] }): JSX.Element | null {
  if (props.commands.length === 0) return null
  return (
    <section class="next">
      <h2>Next steps in a terminal</h2>
      {props.commands.map((command) => (
        <pre key={command} tabIndex={0}>
          <code>{command}</code>
        </pre>
      ))}
    </section>
  )
}
