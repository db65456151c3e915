"""From tags to a first guess of where each object is: a classifier, its peaks, their responses."""

from annocoin.seeds.back_propagation import PeakBackPropagation
from annocoin.seeds.classifier import Architecture, Classifier
from annocoin.seeds.classifier_file import read_classifier, write_classifier
from annocoin.seeds.classifier_training import ClassifierOptions, predict_tags, train_classifier
from annocoin.seeds.collection import SeedFolder
from annocoin.seeds.filtering import worth_keeping
from annocoin.seeds.making import first_labels, make_classifier, make_seeds
from annocoin.seeds.retrieval import Retrieved, retrieve
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.seeder import Seeder, SeedOptions
from annocoin.seeds.storage import read_seeds, write_seeds

__all__ = [
    "Architecture",
    "Classifier",
    "ClassifierOptions",
    "PeakBackPropagation",
    "Retrieved",
    "SeedFolder",
    "SeedOptions",
    "Seeder",
    "Seeds",
    "first_labels",
    "make_classifier",
    "make_seeds",
    "predict_tags",
    "read_classifier",
    "read_seeds",
    "retrieve",
    "train_classifier",
    "worth_keeping",
    "write_classifier",
    "write_seeds",
]
