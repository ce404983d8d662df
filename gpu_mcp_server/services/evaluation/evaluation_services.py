"""The services of evaluation: problems, candidates, verdicts."""

from dataclasses import dataclass

from gpu_mcp_server.services.builds.build_cache import BuildCache
from gpu_mcp_server.services.builds.build_services import BuildServices
from gpu_mcp_server.services.evaluation.attempt_audit import Auditor
from gpu_mcp_server.services.evaluation.attempt_listing import AttemptListing
from gpu_mcp_server.services.evaluation.baselines import Baselines
from gpu_mcp_server.services.evaluation.candidate_batches import Batches
from gpu_mcp_server.services.evaluation.candidate_preparation import CandidatePreparation
from gpu_mcp_server.services.evaluation.confirmation_outcomes import ConfirmationOutcomes
from gpu_mcp_server.services.evaluation.confirmation_runs import ConfirmationRuns
from gpu_mcp_server.services.evaluation.crash_diagnosis import CrashDiagnosis
from gpu_mcp_server.services.evaluation.crash_stacks import CrashStacks
from gpu_mcp_server.services.evaluation.evaluator import Evaluator
from gpu_mcp_server.services.evaluation.host_use import HostUse
from gpu_mcp_server.services.evaluation.input_writes import InputWrites
from gpu_mcp_server.services.evaluation.judge_results import Verdicts
from gpu_mcp_server.services.evaluation.prewarming import Prewarming
from gpu_mcp_server.services.evaluation.problem_registry import Registry
from gpu_mcp_server.services.evaluation.program_candidates import Programs
from gpu_mcp_server.services.evaluation.reference_times import ReferenceTimes
from gpu_mcp_server.services.evaluation.trial_judge import FurtherRuns, TrialJudge
from gpu_mcp_server.services.evaluation.trial_records import TrialRecords
from gpu_mcp_server.services.evaluation.verdict_cache import VerdictCache
from gpu_mcp_server.services.hosts.host_connections import min_level
from gpu_mcp_server.services.jobs.job_services import JobServices
from gpu_mcp_server.services.profiles.memory_checker import Checker
from gpu_mcp_server.services.records.confirmations import Confirmations
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.settings.server_settings import Settings


@dataclass(frozen=True)
class EvaluationServices:
    """Registers problems, judges candidates alone or many at once, and judges again what was judged before."""

    registry: Registry
    evaluator: Evaluator
    batches: Batches
    auditor: Auditor
    baselines: Baselines
    programs: Programs
    verdicts: Verdicts
    confirmations: Confirmations
    runs: ConfirmationRuns
    listing: AttemptListing

    @classmethod
    def create(
        cls, settings: Settings, jobs: JobServices, store: Store, builds: BuildServices, checker: Checker
    ) -> "EvaluationServices":
        """Return them over the same jobs, store and compilers."""
        runner, compiler = jobs.runner, builds.compiler
        db, artifacts, problems, experience = store.db, store.artifacts, store.problems, store.experience
        kept, references = VerdictCache(BuildCache(db, artifacts), experience), ReferenceTimes(db)
        confirmations, use, server = Confirmations(db), HostUse(), jobs.pool.owner
        verdicts = Verdicts(runner, problems, experience, artifacts, kept, confirmations, builds.inspector, references)
        programs = Programs(settings, runner, builds.programs)
        baselines = Baselines(settings, runner, db, compiler, artifacts, verdicts, experience)
        preparation = CandidatePreparation(jobs, compiler, artifacts, programs, Prewarming(settings, runner))
        judge = TrialJudge(
            settings,
            jobs,
            programs,
            verdicts,
            baselines,
            use,
            FurtherRuns(
                InputWrites(settings, runner, verdicts, experience),
                CrashDiagnosis(checker),
                CrashStacks(settings, runner, compiler),
            ),
        )
        records = TrialRecords(experience, artifacts)
        evaluator = Evaluator(runner, problems, preparation, judge, records, kept, confirmations)
        outcomes = ConfirmationOutcomes(experience, artifacts, confirmations, jobs.table, kept)
        auditor = Auditor(evaluator, experience, artifacts, confirmations, outcomes, server)
        runs = ConfirmationRuns(
            db,
            runner,
            jobs.table,
            experience,
            confirmations,
            auditor,
            outcomes,
            verdicts,
            use,
            server,
            min_level(settings),
        )
        return cls(
            Registry(settings, runner, problems, experience, verdicts, programs, compiler, artifacts, baselines),
            evaluator,
            Batches(runner, problems, evaluator),
            auditor,
            baselines,
            programs,
            verdicts,
            confirmations,
            runs,
            AttemptListing(experience, baselines, artifacts, confirmations),
        )
