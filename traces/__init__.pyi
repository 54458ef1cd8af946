from traces.errors import (
    AmbiguousStepError as AmbiguousStepError,
)
from traces.errors import (
    BrokenTraceError as BrokenTraceError,
)
from traces.errors import (
    CycleError as CycleError,
)
from traces.errors import (
    DuplicateStepError as DuplicateStepError,
)
from traces.errors import (
    EmptyTraceError as EmptyTraceError,
)
from traces.errors import (
    NoActiveRecordingError as NoActiveRecordingError,
)
from traces.errors import (
    Place as Place,
)
from traces.errors import (
    TraceError as TraceError,
)
from traces.errors import (
    UnknownConventionError as UnknownConventionError,
)
from traces.errors import (
    UnknownPredecessorError as UnknownPredecessorError,
)
from traces.errors import (
    UnknownStepError as UnknownStepError,
)
from traces.errors import (
    UnreadableTraceError as UnreadableTraceError,
)
from traces.errors import (
    UnwritableTraceError as UnwritableTraceError,
)
from traces.files import read_traces as read_traces
from traces.files import write_traces as write_traces
from traces.graph import Loop as Loop
from traces.graph import TraceGraph as TraceGraph
from traces.model import (
    Blob as Blob,
)
from traces.model import (
    Edge as Edge,
)
from traces.model import (
    ExecutionTrace as ExecutionTrace,
)
from traces.model import (
    Failure as Failure,
)
from traces.model import (
    Snapshot as Snapshot,
)
from traces.model import (
    Step as Step,
)
from traces.model import (
    ToolCall as ToolCall,
)
from traces.model import (
    Usage as Usage,
)
from traces.model import (
    digest as digest,
)
from traces.open_step import OpenStep as OpenStep
from traces.otel.processor import TraceProcessor as TraceProcessor
from traces.otel.read import read as read
from traces.otel.read import read_otel as read_otel
from traces.otel.read import stream_otel as stream_otel
from traces.otel.write import write_otel as write_otel
from traces.recorder import (
    current_step as current_step,
)
from traces.recorder import (
    read_surface as read_surface,
)
from traces.recorder import (
    record as record,
)
from traces.recorder import (
    step as step,
)
from traces.recording import Recording as Recording
