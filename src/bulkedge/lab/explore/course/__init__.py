"""The course: six chapters, from a sentence to a head of one's own."""

from bulkedge.lab.explore.course.chapter import Chapter, Question
from bulkedge.lab.explore.course.heads import BulkChapter, SentenceChapter, SharpnessChapter
from bulkedge.lab.explore.course.signals import DepthChapter, OwnHeadChapter, SignalChapter

COURSE: dict[str, type[Chapter]] = {
    chapter.name: chapter
    for chapter in (SentenceChapter, BulkChapter, SharpnessChapter, DepthChapter, SignalChapter, OwnHeadChapter)
}

__all__ = ["COURSE", "Chapter", "Question"]
